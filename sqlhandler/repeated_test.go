package sqlhandler_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

func longKeys(d *sqlhandler.Dialect) { d.MaxKey, d.MaxToken = 400, 64 }

// Callers that queue for longer than a quarter of their call are repeated. The repetition has the answer of the first attempt,
// so nothing is unknown, and nothing is released again.
func TestUnderLoadEachLockIsReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t, longKeys)
		n.latency = 5 * time.Millisecond // repetitions begin in the instant of an answer, too
		l, err := loki.New(loki.Config{ServiceKey: "key", Primary: h})
		require.NoError(t, err)
		const callers = 500
		var calls sync.WaitGroup
		for i := range callers {
			calls.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					time.Sleep(time.Millisecond) // the repetition returns meanwhile
					return nil
				}, loki.WithResource(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		require.NoError(t, l.Close(t.Context()))
		time.Sleep(time.Minute)
		count := map[string]int{}
		for _, c := range n.sent() {
			count[c.statement]++
		}
		require.Equal(t, map[string]int{"grant": callers, "release": callers}, count)
	})
}

// twice sends claim as the Locker does, whose first attempt is silent for a quarter of the time, and returns what the attempts
// ended with.
func twice(t *testing.T, limit time.Duration, send func(context.Context, loki.Claim) error) (first, second error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var calls sync.WaitGroup
	calls.Go(func() { first = send(ctx, claim) })
	time.Sleep(limit / 4)
	c := claim
	c.Repeated = true
	second = send(ctx, c)
	calls.Wait()
	return first, second
}

// A store that is only slow stays usable, also where the pool has no connection for a second attempt. The first one goes on,
// since its connection was new, or has answered just before.
func TestASlowStatementKeepsItsConnection(t *testing.T) {
	for _, limit := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			n, h := newNetwork(t)
			n.latency = 2510 * time.Millisecond // not at the instant at which the second attempt looks for room
			n.db.SetMaxOpenConns(limit)
			for range limit - 1 {
				conn, err := n.db.Conn(t.Context()) // the application's
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
			}
			for sent := range 2 {
				first, second := twice(t, 3*time.Second, func(ctx context.Context, c loki.Claim) error { return h.Release(ctx, c) })
				require.NoError(t, first)
				require.NoError(t, second)
				require.Len(t, n.sent(), sent+1)
			}
			require.EqualValues(t, limit, n.made.Load())
		})
	}
}

// A first attempt that keeps its connection does not keep the second from one that the application gives back.
func TestASecondAttemptUsesWhatBecomesFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.db.SetMaxOpenConns(2)
		conn, err := n.db.Conn(t.Context())
		require.NoError(t, err)
		require.NoError(t, operations["extend"](t.Context(), h))
		n.forget() // just after an answer
		time.AfterFunc(500*time.Millisecond, func() {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
			_ = conn.Close()
		})
		first, second := twice(t, time.Second, func(ctx context.Context, c loki.Claim) error { return h.Release(ctx, c) })
		require.ErrorIs(t, first, context.DeadlineExceeded)
		require.NoError(t, second)
	})
}

// Drivers ask each idle connection for a sign of life, which none gives.
func TestManyDeadConnectionsAreDiscardedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.idle(t, 250)
		n.resets = true
		n.forget()
		begun := time.Now()
		var took time.Duration
		_, second := twice(t, 500*time.Millisecond, func(ctx context.Context, c loki.Claim) error {
			_, err := h.Lock(ctx, c)
			if c.Repeated {
				took = time.Since(begun)
			}
			return err
		})
		require.NoError(t, second)
		require.Less(t, took, 200*time.Millisecond)
	})
}

// The answer of an earlier call is none of this one.
func TestARepetitionSharesNoAnswerOfAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		send := func(c loki.Claim, release bool) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := h.Lock(ctx, c)
			if release {
				require.NoError(t, h.Release(ctx, c))
				c.Repeated = true
				_, err = h.Lock(ctx, c)
			}
			require.NoError(t, err)
		}
		send(claim, false)
		repeated := claim
		repeated.Repeated = true
		send(repeated, false)
		require.Len(t, n.sent(), 2)
		send(claim, true)
		require.Len(t, n.sent(), 5)
	})
}
