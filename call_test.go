package loki_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// Connections that died in silence: https://github.com/redis/go-redis/issues/941

// deadConnection has the first attempt of every call hang, as on a pooled connection that a firewall has forgotten. A
// second attempt gets through.
func (s *testStore) deadConnection(pause lokitest.Pause, ops ...lokitest.Op) {
	if len(ops) == 0 {
		ops = everyOp
	}
	dead := make(map[lokitest.Op]bool)
	for _, op := range ops {
		dead[op] = true
	}
	s.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
		if dead[op] && !c.Repeated {
			return lokitest.Fault{Before: pause}
		}
		return lokitest.Fault{}
	})
}

var swallowed = lokitest.Pause{For: 1 << 62}

// late is an attempt that reaches the store long after its call.
func late(by time.Duration) lokitest.Pause { return lokitest.Pause{For: by, IgnoreCtx: true} }

func TestCall_SecondAttemptAnswersWhereTheFirstIsSilent(t *testing.T) {
	modes := map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(mode)
				for range 6 {
					r.primary.deadConnection(swallowed)
					r.secondary.deadConnection(swallowed)
					start := time.Now()
					out := r.requireRan(l)
					require.Equal(t, loki.Primary, out.Store)
					require.LessOrEqual(t, out.Waited, loki.DefaultPrimaryTimeout/4+loki.DefaultSecondaryTimeout/4)
					require.LessOrEqual(t, time.Since(start), loki.DefaultPrimaryTimeout/2+loki.DefaultSecondaryTimeout/2)
					r.primary.heal()
					r.secondary.heal()
					time.Sleep(4500 * time.Millisecond)
				}
				require.Empty(t, r.events(loki.KindFellBack))
				require.Empty(t, r.events(loki.KindReleaseFailed))
			})
		})
	}
}

func TestCall_RenewalOverASecondAttemptKeepsTheLease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(alone), r.locker(alone)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			r.primary.deadConnection(swallowed, lokitest.OpExtend)
			time.Sleep(time.Minute)
			require.NoError(t, ctx.Err())
			r.requireBusy(other)
			return nil
		}))
		r.requireRan(other)
		require.Empty(t, r.events(loki.KindRenewFailed))
	})
}

// The first attempt reaches the store when the lock has been released, and when another instance has held it since.
func TestCall_FirstAttemptThatLandsLateLeavesNothing(t *testing.T) {
	for name, pause := range map[string]lokitest.Pause{
		"while its call is under way": late(200 * time.Millisecond),
		"after the release":           late(400 * time.Millisecond),
		"after its deadline":          late(3 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, other := r.locker(alone), r.locker(alone)
				r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: pause})
				start := time.Now()
				r.requireRan(l)
				require.Equal(t, loki.DefaultPrimaryTimeout/4, time.Since(start))
				r.requireRan(other)
				require.NoError(t, l.Close(t.Context()), "Close waits for the attempt, and for the release that follows it")
				require.LessOrEqual(t, time.Since(start), 3*time.Second)
				r.requireEmpty()
				r.requireRan(other)
			})
		})
	}
}

// A store that is only slow answers both attempts: then nothing is unknown, and one release is the end of it.
func TestCall_SlowStoreIsNotAskedForMoreReleases(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		for _, op := range everyOp {
			r.primary.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}, After: lokitest.Pause{For: 100 * time.Millisecond}})
		}
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			time.Sleep(time.Second)
			return nil
		}))
		require.Len(t, r.primary.Calls(lokitest.OpLock), 2)
		time.Sleep(2 * time.Minute)
		require.Len(t, r.primary.firstAttempts(lokitest.OpRelease), 1)
	})
}

func TestCall_FirstAttemptOfABusyAnswerIsRolledBack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(alone), r.locker(alone)
		require.NoError(t, other.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: late(2 * time.Second)})
			start := time.Now()
			r.requireBusy(l)
			require.Equal(t, loki.DefaultPrimaryTimeout/4, time.Since(start))
			time.Sleep(time.Second)
			return nil
		}))
		time.Sleep(2 * time.Second) // the first attempt has been granted meanwhile
		r.requireEmpty()
		r.requireRan(other)
	})
}

func TestCall_SilenceOfBothAttemptsIsOneOutage(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.hang()
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.ErrorContains(t, err, "no answer within 500ms")
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		require.Len(t, r.primary.Calls(lokitest.OpLock), 2, "at most two attempts")
	})
}

func TestCall_ErrorOfAStoreSaysMoreThanItsSilence(t *testing.T) {
	refused := errors.New("WRONGPASS")
	for name, c := range map[string]struct {
		first, second lokitest.Fault
		want          error
		took          time.Duration
	}{
		"first":            {lokitest.Fault{Before: lokitest.Pause{For: 200 * time.Millisecond}, Err: errDown}, lokitest.Fault{Before: swallowed}, errDown, 500 * time.Millisecond},
		"second":           {lokitest.Fault{Before: swallowed}, lokitest.Fault{Err: errDown}, errDown, 500 * time.Millisecond},
		"second permanent": {lokitest.Fault{Before: lokitest.Pause{For: 200 * time.Millisecond}, Err: errDown}, lokitest.Fault{Err: refused}, refused, 200 * time.Millisecond},
		"quick":            {lokitest.Fault{Err: errDown}, lokitest.Fault{}, errDown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				r.primary.faults.Next(lokitest.OpLock, c.first, c.second)
				start := time.Now()
				err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.took, time.Since(start))
				if name == "quick" {
					require.Len(t, r.primary.Calls(lokitest.OpLock), 1, "an error that comes at once is not tried again")
					r.primary.faults.Clear()
				}
			})
		})
	}
}

func TestCall_ErrorOfOneAttemptWaitsForTheOther(t *testing.T) {
	for name, faults := range map[string][]lokitest.Fault{
		"the first fails":  {{Before: lokitest.Pause{For: 150 * time.Millisecond}, Err: errDown}, {Before: lokitest.Pause{For: 100 * time.Millisecond}}},
		"the second fails": {{Before: lokitest.Pause{For: 225 * time.Millisecond}}, {Err: errDown}},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				r.primary.faults.Next(lokitest.OpLock, faults...)
				require.Equal(t, 225*time.Millisecond, r.requireRan(l).Waited)
			})
		})
	}
}

func TestCall_EndOfTheContextEndsBothAttempts(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.hang()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		calls := r.primary.Calls(lokitest.OpLock)
		require.Len(t, calls, 2)
		require.Equal(t, 75*time.Millisecond, calls[1].Start.Sub(start), "a quarter of the time that there is")
		time.Sleep(loki.Linger + loki.DefaultPrimaryTimeout) // the store may still answer, which keeps its connection warm
		for _, c := range r.primary.Calls(lokitest.OpLock)[:2] {
			require.False(t, c.End.IsZero(), "an attempt goes on: %v", c)
		}
	})
}

// The row is asked for until the end of the lease, however long the first attempt was silent: a row that outlives its key
// looks like another holder.
func TestCall_SecondAttemptOfAMirrorWriteAsksForNoMoreThanTheLease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.deadConnection(swallowed)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			time.Sleep(2 * time.Second)
			return nil
		}))
		calls := r.secondary.Calls(lokitest.OpLock)
		require.Len(t, calls, 2)
		require.Equal(t, 30*time.Second, calls[0].Claim.Expiry)
		require.Equal(t, 30*time.Second-loki.DefaultSecondaryTimeout/4, calls[1].Claim.Expiry)
	})
}

// Two methods are enough to be asked twice.
func TestCall_TwoMethodHandlerIsAskedTwice(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: struct{ loki.LockHandler }{r.primary}})
		require.NoError(t, err)
		r.lockers = append(r.lockers, l)
		r.primary.deadConnection(swallowed)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			time.Sleep(10 * time.Second)
			return ctx.Err()
		}))
	})
}

// A second subscription would have to be ended, and its connection is the handler's to watch.
func TestCall_SubscriptionIsNotRepeated(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(alone), r.locker(alone)
		require.NoError(t, other.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.hang(lokitest.OpNotify)
			r.requireBusy(l, loki.WithWait(2*time.Second))
			return nil
		}))
		require.Len(t, r.primary.Calls(lokitest.OpNotify), 1)
	})
}

// A store whose every answer takes longer than the first attempt is given: its losers are not abandoned calls, of which only
// so many may be.
func TestCall_ManyCallersOfASlowStoreAreAllAnswered(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		for _, op := range everyOp {
			r.primary.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: 75 * time.Millisecond}, After: lokitest.Pause{For: 75 * time.Millisecond}})
		}
		var callers sync.WaitGroup
		for i := range 300 {
			callers.Go(func() {
				for j := range 3 {
					if err := r.try(l, loki.WithResource(fmt.Sprint(i, "-", j))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		require.Empty(t, r.events(loki.KindDown))
		require.Empty(t, r.events(loki.KindReleaseFailed))
	})
}

// A handler may see the end of the caller's time a moment before the context does, and what it returns then says nothing about
// the store.
func TestCall_HandlersEndOfTheCallersTimeIsTheCallers(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				full := func(ctx context.Context) error { // as the handler of a full pool does
					deadline, _ := ctx.Deadline()
					time.Sleep(time.Until(deadline) - time.Millisecond)
					return loki.NotSent(context.DeadlineExceeded)
				}
				l := r.locker(mode, func(c *loki.Config) {
					if c.Secondary == nil {
						c.Primary = &busyPool{r.primary, full}
					} else {
						c.Secondary = &busyPool{r.secondary, full}
						c.Mirror = loki.MirrorSync
					}
				})
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, loki.ErrUnavailable)
					synctest.Wait() // for its rollback
				}
				r.requireReported()
			})
		})
	}
}

// busyPool is a store whose connections are all in use.
type busyPool struct {
	*testStore
	wait func(context.Context) error
}

func (s *busyPool) Grant(ctx context.Context, _ loki.Claim) (loki.Grant, error) {
	return loki.Grant{}, s.wait(ctx)
}

// A nil pointer in an error is a bug of the handler, and is reported like its panic.
func TestCall_ErrorWhoseTextPanicsIsThePanicOfTheHandler(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		var nothing *brokenError
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: nothing})
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorContains(t, err, "the handler panicked")
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: nothing})
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			time.Sleep(time.Second) // its mirror write fails
			return nil
		}))
		require.Len(t, r.events(loki.KindPanic), 2)
	})
}

type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// endless has a deadline, and does not end with it, but perhaps later.
type endless struct {
	context.Context
	deadline time.Time
}

func (c endless) Deadline() (time.Time, bool) { return c.deadline, true }

// A busy machine ends a context some time after its deadline, and the handler, which heeds that, has given up before.
func TestCall_ContextThatEndsLateIsNoOutage(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		deadline := time.Now().Add(20 * time.Millisecond)
		late, cancel := context.WithDeadline(t.Context(), deadline.Add(100*time.Millisecond))
		defer cancel()
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}, Err: loki.NotSent(context.DeadlineExceeded)})
		err := l.ExecuteWithinLock(endless{late, deadline}, time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
	})
}

func TestCall_EndsWithItsTimeoutWhereTheContextDoesNotEndWithItsDeadline(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.hang()
		start := time.Now()
		err := l.ExecuteWithinLock(endless{t.Context(), start.Add(100 * time.Millisecond)}, time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
	})
}
