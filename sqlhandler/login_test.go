package sqlhandler_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// slowLogins are those of a server that needs some time for each, whatever becomes of its caller.
type slowLogins struct {
	takes          time.Duration
	now, most, all atomic.Int64
}

func (s *slowLogins) dial(ctx context.Context) error {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	s.all.Add(1)
	defer s.now.Add(-1)
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// timed makes a call that has a second.
func timed(t *testing.T, h *sqlhandler.Base, send func(context.Context, *sqlhandler.Base) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return send(ctx, h)
}

// Logins take longer than calls may. The one that outlives its caller serves the next calls.
func TestALoginOutlivesItsCaller(t *testing.T) {
	for _, op := range []string{"lock", "extend", "release", "inspect"} {
		send := operations[op]
		synctest.Test(t, func(t *testing.T) {
			n, h := newNetwork(t)
			server := &slowLogins{takes: 2500 * time.Millisecond}
			n.dial = server.dial
			for range 2 {
				err := timed(t, h, send)
				require.ErrorContains(t, err, "no connection to the server was ready within 950ms", op)
				require.True(t, loki.IsUnavailable(err), op)
			}
			for range 10 {
				require.NoError(t, timed(t, h, send), op)
			}
			require.EqualValues(t, 1, n.made.Load(), op)
			require.Less(t, server.all.Load(), int64(4), op)
			time.Sleep(sqlhandler.LoginLinger)
		})
	}
}

// A login that goes into nothing keeps the next one waiting for a moment only, and ends.
func TestALoginThatHangsIsNotTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		var dials atomic.Int64
		n.dial = func(ctx context.Context) error {
			if dials.Add(1) > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		begun := time.Now()
		require.Error(t, timed(t, h, operations["lock"]))
		require.NoError(t, timed(t, h, operations["lock"]))
		require.Less(t, time.Since(begun), sqlhandler.ColdTime+50*time.Millisecond)
		time.Sleep(sqlhandler.LoginLinger)
		synctest.Wait()
		require.Equal(t, 1, n.db.Stats().OpenConnections)
	})
}

// Many callers of a cold pool begin few sessions, and share what these bring. Renewals and releases come first.
func TestFewSessionsBeginAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.db.SetMaxIdleConns(30)
		n.latency = 5 * time.Millisecond
		server := &slowLogins{takes: 600 * time.Millisecond}
		n.dial = server.dial
		var calls sync.WaitGroup
		for i := range 40 {
			c := claim
			c.Key = fmt.Sprint(i)
			calls.Go(func() {
				if err := timed(t, h, func(ctx context.Context, h *sqlhandler.Base) error { _, err := h.Lock(ctx, c); return err }); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		calls.Go(func() {
			if err := timed(t, h, operations["extend"]); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > 610*time.Millisecond {
				t.Error("a renewal waited for acquisitions: ", took)
			}
		})
		calls.Wait()
		time.Sleep(sqlhandler.LoginLinger)
		require.EqualValues(t, 1, server.most.Load())
		require.LessOrEqual(t, server.all.Load(), int64(3))
	})
}

// A session begins until its first answer.
func TestTheFirstAnswerOfASessionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.latency = 800 * time.Millisecond
		var calls sync.WaitGroup
		for i := range 8 {
			c := claim
			c.Key = fmt.Sprint(i)
			calls.Go(func() {
				if _, err := h.Lock(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(700 * time.Millisecond)
		require.EqualValues(t, 1, n.made.Load())
		time.Sleep(200 * time.Millisecond)
		require.EqualValues(t, 2, n.made.Load())
		calls.Wait()
	})
}

// A second attempt beside the first statement of a session would be the first statement of another.
func TestASecondAttemptWaitsForTheFirstAnswerOfASession(t *testing.T) {
	for _, limit := range []int{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			n, h := newNetwork(t)
			n.db.SetMaxOpenConns(limit)
			n.latency = 2500 * time.Millisecond
			first, second := twice(t, 3*time.Second, func(ctx context.Context, c loki.Claim) error { _, err := h.Lock(ctx, c); return err })
			require.NoError(t, first)
			require.NoError(t, second)
			require.Len(t, n.sent(), 1)
			require.EqualValues(t, 1, n.made.Load())
		})
	}
}

// A driver may heed no context. The logins that it does not return from are bounded, and when they are over all is well.
func TestLoginsThatHeedNoContextAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		over := make(chan struct{})
		var dials atomic.Int64
		n.dial = func(context.Context) error {
			dials.Add(1)
			<-over
			return nil
		}
		for range 100 {
			begun := time.Now()
			require.True(t, loki.IsUnavailable(timed(t, h, operations["lock"])))
			require.Less(t, time.Since(begun), time.Second)
		}
		require.EqualValues(t, sqlhandler.MaxDeaf, dials.Load())
		close(over)
		require.NoError(t, timed(t, h, operations["lock"]))
		synctest.Wait()
		require.Zero(t, n.db.Stats().InUse)
	})
}

// A login goes into nothing while acquisitions and a renewal wait. The next session is the renewal's.
func TestARenewalBeginsTheNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		var dials atomic.Int64
		n.dial = func(ctx context.Context) error {
			if dials.Add(1) > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var calls sync.WaitGroup
		for i := range 8 {
			c := claim
			c.Key = fmt.Sprint(i)
			calls.Go(func() { _, _ = h.Lock(ctx, c) })
		}
		synctest.Wait()
		calls.Go(func() { _, _ = h.Extend(ctx, claim) })
		calls.Wait()
		require.Equal(t, "extend", n.sent()[0].statement)
		time.Sleep(sqlhandler.LoginLinger)
	})
}

// patient is a context as the Locker's is: it ends some time after its deadline.
type patient struct {
	context.Context
	deadline time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.deadline, true }

// Nothing is sent after the deadline of a call, also where it lingers, and its driver heeds no context.
func TestAConnectionThatComesTooLateSendsNothing(t *testing.T) {
	for _, idle := range []int{-1, 2} {
		synctest.Test(t, func(t *testing.T) {
			n, h := newNetwork(t)
			n.db.SetMaxIdleConns(idle)
			require.NoError(t, operations["lock"](t.Context(), h))
			n.forget()
			n.db.SetMaxIdleConns(-1)
			n.dial = func(context.Context) error { time.Sleep(2 * time.Second); return nil }
			_, err := h.Lock(patient{t.Context(), time.Now().Add(time.Second)}, claim)
			require.ErrorContains(t, err, "no connection to the server was ready")
			require.True(t, isNotSent(err))
			time.Sleep(sqlhandler.LoginLinger)
			require.Len(t, n.sent(), 1)
			require.Zero(t, n.db.Stats().InUse)
		})
	}
}
