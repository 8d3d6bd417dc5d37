package loki_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// The request is given up before it reaches the store, and lands after the first release did.
func TestRollBack_ARequestThatLandsLate(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.nextCall(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 3 * time.Second, IgnoreCtx: true}})
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), time.Hour, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		require.NoError(t, l.Close(t.Context()), "Close waits for the release that follows the late request")
		require.Equal(t, 3*time.Second+loki.DefaultPrimaryTimeout/4, time.Since(start), "the second attempt is late too")
		r.requireEmpty()
	})
}

// A nil from Release proves nothing: a command can land after its connection is gone.
func TestRollBack_ARequestThatLandsWhenNobodyWaitsForItAnyMore(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		claim := r.primary.Calls(lokitest.OpLock)[0].Claim
		time.Sleep(10 * time.Second)
		r.primary.plant(t, claim)
		time.Sleep(15 * time.Second)
		r.requireEmpty()

		time.Sleep(2 * time.Minute)
		n := len(r.primary.Calls(lokitest.OpRelease))
		require.Less(t, n, 25)
		time.Sleep(time.Hour)
		require.Len(t, r.primary.Calls(lokitest.OpRelease), n, "it ends when the store has forgotten the claim by itself")
	})
}

func TestRollBack_AnAnswerThatComesAfterTheLeaseIsOver(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{LostReply: true, Err: errDown})
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		r.requireEmpty()
		require.Len(t, r.events(loki.KindRolledBack), 1)
	})
}

// The reply to an acquisition was lost, and its caller tries again while the rollback is on its way.
func TestRollBack_DoesNotKeepTheCallersNextAttemptBusy(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}})
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{LostReply: true, Err: errDown})
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		r.requireRan(l)
	})
}

func TestRollBack_AlsoAfterAMistakeAndAPanic(t *testing.T) {
	for name, fault := range map[string]lokitest.Fault{
		"mistake": {Err: errors.New("the proxy does not understand the reply"), LostReply: true},
		"panic":   {Panic: "nil map"},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker()
				r.primary.faults.Next(lokitest.OpLock, fault)
				err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
				var handlerErr *loki.HandlerError
				require.ErrorAs(t, err, &handlerErr)
				require.NotErrorIs(t, err, loki.ErrUnavailable)
				r.requireEmpty()
				require.NotEmpty(t, r.primary.Calls(lokitest.OpRelease))
			})
		})
	}
}

func TestReleaseIsRetriedUntilTheExpiryHasPassed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.fail(errDown, lokitest.OpRelease)
			return nil
		}))
		time.Sleep(20 * time.Second)
		require.NotEmpty(t, r.primary.mem.HeldKeys())
		r.primary.heal()
		time.Sleep(10 * time.Second)
		r.requireEmpty()
		require.Len(t, r.events(loki.KindReleaseFailed), 1)
	})
}

func TestReleaseHasADeadlineOfItsOwn(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		err := l.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error {
			cancel()
			r.primary.hang()
			r.secondary.hang()
			return ctx.Err()
		})
		require.Equal(t, context.Canceled, err)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		r.primary.heal()
		r.secondary.heal()
		time.Sleep(10 * time.Second)
		r.requireEmpty()
	})
}

func TestMinHold(t *testing.T) {
	for _, c := range []struct {
		name          string
		expiry, hold  time.Duration
		change        func(*loki.Config)
		primaryIsDown bool
	}{
		{name: "shorter than the expiry", expiry: time.Minute, hold: 5 * time.Second},
		{name: "longer than the expiry", expiry: time.Second, hold: 5 * time.Second},
		{name: "alone", expiry: time.Minute, hold: 5 * time.Second, change: alone},
		{name: "in sync", expiry: time.Minute, hold: 5 * time.Second, change: inSync},
		{name: "through the secondary", expiry: time.Minute, hold: 5 * time.Second, primaryIsDown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				if c.change == nil {
					c.change = func(*loki.Config) {}
				}
				l, other := r.locker(c.change), r.locker(c.change)
				if c.primaryIsDown {
					r.primary.fail(errDown)
				}
				start := time.Now()
				require.NoError(t, l.ExecuteWithinLock(t.Context(), c.expiry, func(context.Context) error {
					time.Sleep(500 * time.Millisecond)
					return nil
				}, loki.WithMinHold(c.hold)))
				require.Equal(t, 500*time.Millisecond, time.Since(start), "the call returns at once")
				for time.Since(start) < c.hold-time.Millisecond {
					r.requireBusy(other)
					r.requireBusy(l)
					if c.change != nil && r.secondary.mem.HeldKeys() != nil {
						r.secondary.held(t, "job")
					}
					time.Sleep(100*time.Millisecond - time.Millisecond/10)
				}
				time.Sleep(c.hold - time.Since(start) + 2*time.Millisecond)
				r.requireRan(other)
				r.requireRan(l)
				require.NoError(t, l.Close(t.Context()))
				require.Less(t, time.Since(start), c.hold+time.Second)
			})
		})
	}
}

func TestMinHoldIsKeptInBothStoresAndRetried(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		start := time.Now()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			time.Sleep(time.Second)
			r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{Err: errDown})
			return nil
		}, loki.WithMinHold(10*time.Second)))
		time.Sleep(time.Second)
		for _, s := range []*testStore{r.primary, r.secondary} {
			require.WithinDuration(t, start.Add(10*time.Second), s.held(t, "job").Until, 2*time.Millisecond)
		}
		require.NoError(t, l.Close(t.Context()), "Close does not wait for it")
		require.Equal(t, 2*time.Second, time.Since(start))
		time.Sleep(8*time.Second + 2*time.Millisecond)
		r.requireEmpty()
	})
}

// A store that keeps a history is told how the run ended, in the primary and in the mirror alike.
func TestRelease_TellsWhetherTheRunFailed(t *testing.T) {
	runs := map[string]struct {
		failed bool
		run    func(r *rig, l *loki.Locker)
	}{
		"fn returned nil": {false, func(r *rig, l *loki.Locker) { r.requireRan(l) }},
		"fn returned an error": {true, func(r *rig, l *loki.Locker) {
			err := l.ExecuteWithinLock(r.t.Context(), time.Minute, func(context.Context) error { return errFn })
			require.Equal(r.t, errFn, err)
		}},
		"fn panicked": {true, func(r *rig, l *loki.Locker) {
			require.PanicsWithValue(r.t, "fn", func() {
				_ = l.ExecuteWithinLock(r.t.Context(), time.Minute, func(context.Context) error { panic("fn") })
			})
		}},
		"the lock was lost": {true, func(r *rig, l *loki.Locker) {
			err := l.ExecuteWithinLock(r.t.Context(), time.Minute, func(ctx context.Context) error {
				r.primary.fail(errDown)
				r.secondary.fail(errDown)
				<-ctx.Done()
				r.primary.heal()
				r.secondary.heal()
				return nil
			})
			require.ErrorIs(r.t, err, loki.ErrLockLost)
		}},
		"a lease without a closure": {false, func(r *rig, l *loki.Locker) {
			ls, err := l.Acquire(r.t.Context(), time.Minute)
			require.NoError(r.t, err)
			require.NoError(r.t, ls.Release(r.t.Context()))
		}},
	}
	for name, tt := range runs {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				tt.run(r, r.locker(inSync))
				synctest.Wait()
				token := r.primary.Calls(lokitest.OpLock)[0].Claim.Token
				for _, store := range []*testStore{r.primary, r.secondary} {
					released := slices.DeleteFunc(store.Calls(lokitest.OpRelease), func(c lokitest.Call) bool { return c.Claim.Token != token })
					require.NotEmpty(t, released)
					for _, call := range released {
						require.Equal(t, tt.failed, call.Claim.Failed)
					}
				}
			})
		})
	}
}
