package lokitest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

func TestCheck_ReturnsEveryBrokenClause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newHandler := func() loki.LockHandler {
			return newMutant(func(m *mutant) {
				releaseMutants["release-frees"]["does nothing"](m)
				m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
					return loki.Holder{}, false, ctx.Err()
				}
			})
		}
		broken := lokitest.Broken(t.Context(), newHandler)
		require.Contains(t, broken, "release-frees")
		require.Contains(t, broken, "inspect-tells-holder")

		err := lokitest.Check(t.Context(), newHandler())
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok)
		require.Len(t, joined.Unwrap(), len(broken))
		for name := range broken {
			require.ErrorContains(t, err, `"`+name+`"`)
		}
		for _, name := range []string{"release-frees", "inspect-tells-holder"} {
			require.ErrorContains(t, err, lokitest.Laws()[name], "the words of the contract")
		}
	})
}

func TestCheck_SaysOfAHandlerThatWaitsOnlyThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := lokitest.Check(t.Context(), newMutant(lockMutants["does-not-wait"]["waits for the lock"]))
		require.ErrorContains(t, err, `"does-not-wait"`)
		require.NotContains(t, err.Error(), `"busy-is-an-answer"`)
		require.Less(t, time.Since(start), time.Minute)
	})
}

func TestCheck_TheEndOfTheContextBreaksNothing(t *testing.T) {
	for name, within := range map[string]time.Duration{"before": 0, "meanwhile": 30 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				err := lokitest.Check(ctx, memhandler.New())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotContains(t, err.Error(), "breaks the clause")
			})
		})
	}
}

func TestCheck_APanicOfTheHandlerBreaksTheClause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := lokitest.Check(t.Context(), newMutant(func(m *mutant) {
			m.extend = func(context.Context, loki.Claim) (bool, error) { panic("bug of the handler") }
		}))
		require.ErrorContains(t, err, `"extend-for-longer"`)
		require.ErrorContains(t, err, "panicked: bug of the handler")
		require.NotContains(t, err.Error(), `"free-is-granted"`)
	})
}

func TestCheck_NothingToTest(t *testing.T) {
	require.ErrorContains(t, lokitest.Check(t.Context(), nil), "nil")
}
