package sqlhandler_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

func TestBaseDoTreatsACallAsAStatement(t *testing.T) {
	h, s := newStub(t, nil)
	calls := 0
	do := func(key string, errs ...error) error {
		calls = 0
		return h.Do(t.Context(), "notify", key, func() error {
			calls++
			if calls <= len(errs) {
				return errs[calls-1]
			}
			return nil
		})
	}
	require.NoError(t, do("k"))
	require.NoError(t, do("k", errLost), "it is repeated")
	require.Equal(t, 2, calls)
	err := do("k", errDown, errDown)
	require.True(t, loki.IsUnavailable(err))
	require.ErrorContains(t, err, `stubhandler: notify of "k" in "locks": wait`)
	require.Equal(t, 1, calls)
	err = do("k", errNoRights)
	require.False(t, loki.IsUnavailable(err))
	require.ErrorIs(t, err, errNoRights)
	require.ErrorContains(t, do("k "), "ends in a blank")
	require.Zero(t, calls, "a key that the store cannot tell from another is not asked about")

	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, h.Do(ctx, "notify", "k", func() error { cancel(); return errBroken }), context.Canceled)
	require.Empty(t, s.sent())

	require.ErrorContains(t, (*sqlhandler.Base)(nil).Do(t.Context(), "notify", "k", func() error { return nil }), "not made by NewBase")
}
