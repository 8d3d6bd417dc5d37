package sqlhandler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// A server that has to catch up gets no second connection for a call that waits for its first.
func TestAConnectionThatIsBeingMadeIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.idle(t, 2)
		n.db.SetMaxIdleConns(1) // has closed one, as a busy pool does
		require.NoError(t, operations["lock"](t.Context(), h))
		conn, err := n.db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()

		before, dials, back := n.made.Load(), 0, make(chan struct{})
		n.dial = func(ctx context.Context) error {
			dials++
			select {
			case <-back:
				return nil
			case <-ctx.Done():
				return fmt.Errorf("handshake: %w", ctx.Err())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := h.Lock(ctx, claim); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(250 * time.Millisecond)
		calls.Go(func() {
			second := claim
			second.Repeated = true
			if _, err := h.Lock(ctx, second); err != nil { // it has the first one's answer
				t.Error(err)
			}
		})
		time.Sleep(400 * time.Millisecond)
		close(back)
		calls.Wait()
		require.Equal(t, 1, dials)
		require.Equal(t, before+1, n.made.Load())
	})
}

// A call whose connection was not ready says what the driver said, and an error of the driver that is permanent is one. Of a
// login that outlives its caller the driver says it when that is over.
func TestAConnectionThatIsNotReadyIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		cause := error(nil)
		n.dial = func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("no handshake: %w: %w", ctx.Err(), cause)
		}
		call := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := h.Lock(ctx, claim)
			require.ErrorContains(t, err, "no connection to the server was ready within 950ms: dial, TLS and login had not ended")
			return err
		}
		for _, cause = range []error{errDown, errNoRights} {
			requireExplained := func(err error, how string) {
				require.ErrorContains(t, err, how+cause.Error())
				require.Equal(t, errors.Is(cause, errDown), loki.IsUnavailable(err), "%v", err)
				require.Equal(t, errors.Is(cause, errDown), isNotSent(err), "%v", err)
			}
			_ = call() // its login goes on
			requireExplained(call(), "no handshake: context deadline exceeded: ")
			time.Sleep(sqlhandler.LoginLinger)
			requireExplained(call(), "the last login: no handshake: context canceled: ")
			time.Sleep(sqlhandler.LoginLinger)
			synctest.Wait()
		}
		hangs := n.dial
		n.dial = nil
		require.NoError(t, operations["lock"](t.Context(), h))
		n.dial, cause = hangs, nil
		n.db.SetMaxIdleConns(-1)
		require.True(t, loki.IsUnavailable(call()), "what was wrong is over")
		time.Sleep(sqlhandler.LoginLinger)
		synctest.Wait()
	})
}

// A pool whose statements are slow loses its connections once, not to each call that it keeps waiting.
func TestIdleConnectionsAreDiscardedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.idle(t, 8)
		for i := range 4 {
			n.answers = make(chan struct{})
			c := claim
			c.Key = fmt.Sprint(i)
			var calls sync.WaitGroup
			calls.Go(func() { _, _ = h.Lock(t.Context(), c) })
			time.Sleep(50 * time.Millisecond)
			second := c
			second.Repeated = true
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			calls.Go(func() { _, _ = h.Lock(ctx, second) })
			time.Sleep(20 * time.Millisecond)
			close(n.answers)
			calls.Wait()
		}
		require.LessOrEqual(t, n.made.Load(), int64(8+2))
	})
}
