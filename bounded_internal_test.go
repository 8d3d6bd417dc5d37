package loki

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type testKey struct{}

func TestBoundedContext_EndsAtItsDeadlineOrWithTheCallers(t *testing.T) {
	t.Parallel()
	errWhy := errors.New("why")
	for name, asked := range map[string]bool{"without a timer": false, "with a timer": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				c := &boundedContext{Context: context.WithValue(t.Context(), testKey{}, 1), deadline: start.Add(time.Second)}
				defer c.end()
				if asked {
					require.NotNil(t, c.Done())
				}
				deadline, ok := c.Deadline()
				require.True(t, ok)
				require.Equal(t, start.Add(time.Second), deadline)
				require.Equal(t, 1, c.Value(testKey{}))
				time.Sleep(time.Second - 1)
				require.NoError(t, c.Err())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, context.DeadlineExceeded, c.Err())
				<-c.Done()

				parent, cancel := context.WithCancelCause(t.Context())
				c = &boundedContext{Context: parent, deadline: time.Now().Add(time.Second)}
				defer c.end()
				if asked {
					require.NotNil(t, c.Done())
				}
				cancel(errWhy)
				require.Equal(t, context.Canceled, c.Err())
				require.Equal(t, errWhy, context.Cause(c))
				<-c.Done()
			})
		})
	}
}

// A context that is derived from another one's has a goroutine, unless it finds one of the standard library's there. That
// goroutine would be left when the bubble ends.
func TestBoundedContext_DerivedContextsNeedNoGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &boundedContext{Context: context.Background(), deadline: time.Now().Add(time.Hour)}
		derived, cancel := context.WithCancel(c)
		defer cancel()
		c.end()
		<-derived.Done() // at once: it is called by end
		require.Zero(t, time.Since(c.deadline.Add(-time.Hour)))
	})
}
