package loki_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// After the secondary has named another holder, its silence permits no start.
func TestSuspect_SilenceAfterARefusalIsNoAgreement(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		b := r.locker()
		r.secondary.plant(t, foreign(10*time.Minute))
		err := b.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error { <-ctx.Done(); return nil })
		require.ErrorIs(t, err, loki.ErrConflict)
		r.secondary.hang()
		for range 20 {
			err := b.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
			require.ErrorIs(t, err, loki.ErrBusy)
			require.ErrorContains(t, err, "has not answered since")
			time.Sleep(10 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		r.requireRan(b) // the record that it named has expired: what the secondary does not say counts as before
	})
}

// Nor does its silence within the acquisition in which it has named that holder.
func TestSuspect_SilenceRevokesNoRefusal(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
		r.requireRan(l)
		r.primaryIsBack() // after an outage, the secondary is asked before fn
		r.secondary.plant(t, foreign(time.Minute))
		refusals := 0
		r.secondary.faults.Decide(func(op lokitest.Op, _ loki.Claim) lokitest.Fault {
			if refusals++; op == lokitest.OpLock && refusals > 1 {
				return lokitest.Fault{Err: errDown}
			}
			return lokitest.Fault{}
		})
		require.ErrorContains(t, r.requireBusy(l), "somebody else")
		r.secondary.heal()
		r.requireForeign()
		time.Sleep(time.Minute)
	})
}

// A fallback that was refused knows the holder, too.
func TestSuspect_ARefusedFallbackIsRemembered(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		b := r.locker()
		r.secondary.plant(t, foreign(time.Minute))
		r.primary.fail(errDown)
		r.requireBusy(b)
		r.primaryIsBack()
		r.secondary.hang()
		r.requireBusy(b)
		time.Sleep(2 * time.Minute)
		r.requireRan(b)
	})
}

// A grant of the secondary, also by a fallback, proves that the holder which it named is gone.
func TestSuspect_AGrantEndsARefusal(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		other := foreign(time.Hour)
		r.secondary.plant(t, other)
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error { <-ctx.Done(); return nil })
		require.ErrorIs(t, err, loki.ErrConflict)
		require.NoError(t, r.secondary.mem.Release(t.Context(), other))
		r.primary.fail(errDown)
		time.Sleep(time.Millisecond)
		r.requireRan(l)
		r.primaryIsBack()
		r.secondary.hang()
		r.requireRan(l)
	})
}

// A mirror write lands when its lease is over, and this process holds the key again: the other holder is no other one.
func TestSuspect_ALateRefusalByOurOwnRecordIsNone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		runFor := func(d time.Duration) error {
			return l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(d)
				return nil
			})
		}
		r.secondary.nextCall(lokitest.OpLock, lokitest.Fault{Before: late(5 * time.Second)})
		require.NoError(t, runFor(time.Second))
		require.NoError(t, runFor(5*time.Second))
		r.secondary.fail(errDown)
		r.requireRan(l)
	})
}

// One failure of the primary, and the secondary is asked first; but not forever.
func TestSuspect_EndsAfterTheLongestExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
		r.requireRan(l)
		r.primaryIsBack()
		time.Sleep(35 * time.Second) // the longest expiry was 30 s
		r.secondary.hang()
		for i := range 100 {
			require.Zero(t, r.requireRan(l, loki.WithResource(fmt.Sprint(i))).Waited, "resource %d", i)
		}
	})
}

// A closure of one instance follows that of another. The release of the first is still on its way to the secondary when
// the second one's mirror write arrives there, and the primary does not name released tokens.
func TestHandOver_IsNoConflict(t *testing.T) {
	for _, works := range []time.Duration{0, 30 * time.Millisecond, 60 * time.Millisecond, time.Second} {
		inRig(t, func(t *testing.T, r *rig) {
			a, b := r.locker(forgetful(r)), r.locker(forgetful(r))
			r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}, After: lokitest.Pause{For: 20 * time.Millisecond}})
			r.secondary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 40 * time.Millisecond}, After: lokitest.Pause{For: 20 * time.Millisecond}})
			held := hold(t, a, 30*time.Second)
			time.Sleep(500 * time.Millisecond)
			next := make(chan error)
			go func() {
				next <- b.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					time.Sleep(works)
					return nil
				}, loki.WithWait(time.Minute))
			}()
			time.Sleep(500 * time.Millisecond)
			require.NoError(t, held.end())
			require.NoError(t, <-next)
			require.Empty(t, r.events(loki.KindConflict))
		})
	}
}

// forgetful takes from the primary the memory of released tokens, which two-method handlers and SQL stores do not have.
func forgetful(r *rig) func(*loki.Config) {
	return func(c *loki.Config) { c.Primary = forgetfulStore{r.primary} }
}

type forgetfulStore struct{ *testStore }

func (s forgetfulStore) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	g, err := s.testStore.Grant(ctx, c)
	g.Released = ""
	return g, err
}

// The releases of one process do not reach the secondary, and it runs again and again.
func TestReconciler_AProcessReplacesItsOwnRecord(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(forgetful(r))
		r.secondary.fail(errDown, lokitest.OpRelease)
		for range 20 {
			require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(time.Second)
				return nil
			}))
		}
		require.Empty(t, r.events(loki.KindConflict))
	})
}

// The repeated release of one lease returns while the mirror write of the next one is under way, and that lease is over by then.
func TestReconciler_ReleasesWhatAMirrorWriteUnderWayRecords(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		run := func() {
			require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
				time.Sleep(10 * time.Millisecond) // until its mirror write is under way
				return nil
			}))
		}
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
		run()
		r.secondary.nextCall(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 500 * time.Millisecond}})
		run()
		before := len(r.secondary.Calls(lokitest.OpRelease))
		time.Sleep(400 * time.Millisecond)
		require.Greater(t, len(r.secondary.Calls(lokitest.OpRelease)), before, "the first lease's release was repeated meanwhile")
		time.Sleep(10 * time.Second)
		r.requireEmpty()
	})
}

// A lease is forgotten when its records are as they should be, also where its caller has released it.
func TestReconciler_ForgetsWhatIsDone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 9*time.Second, func(context.Context) error {
			time.Sleep(time.Second)
			require.Equal(t, 1, loki.Reconciled(l), "it is mirrored")
			r.primary.fail(errDown)
			time.Sleep(10 * time.Second) // it goes on by the secondary, and is released there by its caller
			r.primary.heal()
			time.Sleep(10 * time.Second)
			r.primary.fail(errDown)
			time.Sleep(10 * time.Second)
			return nil
		}))
		r.primary.heal()
		time.Sleep(time.Minute)
		require.Zero(t, loki.Reconciled(l))
	})
}

// Keys whose requests hang do not keep the secondary's slots.
func TestReconciler_HangingKeysTakeNothingFromTheOthers(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
			if len(c.Key) > len("job/well") {
				return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
			}
			return lokitest.Fault{}
		})
		var all []*loki.Lease
		for i := range 100 {
			ls, err := l.Acquire(t.Context(), time.Minute, loki.WithResource(fmt.Sprint("hanging", i)))
			require.NoError(t, err)
			all = append(all, ls)
		}
		time.Sleep(time.Second)
		before := time.Now()
		well, err := l.Acquire(t.Context(), time.Minute, loki.WithResource("well"))
		require.NoError(t, err)
		for len(r.secondary.mem.HeldKeys()) == 0 {
			require.Less(t, time.Since(before), 100*time.Millisecond)
			time.Sleep(time.Millisecond)
		}
		for _, ls := range append(all, well) {
			_ = ls.Release(t.Context())
		}
	})
}

// Leases are acquired faster than the secondary records them: their callers write the mirror then, and no more than a few
// first writes wait.
func TestReconciler_CallersHelpWhenFirstWritesWait(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 40 * time.Millisecond}})
		const leases = 500
		var all []*loki.Lease
		for i := range leases {
			ls, err := l.Acquire(t.Context(), time.Minute, loki.WithResource(fmt.Sprint(i)))
			require.NoError(t, err)
			all = append(all, ls)
		}
		require.GreaterOrEqual(t, len(r.secondary.mem.HeldKeys()), leases-5*loki.MirrorSlots-1)
		for _, ls := range all {
			_ = ls.Release(t.Context())
		}
	})
}

// Many leases are mirrored to a secondary that takes 20 ms a call. A conflict of a new one is found in time all the same,
// and the operator learns that the mirror is behind.
func TestReconciler_FirstWritesGoFirst(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		const expiry = 2 * time.Second
		b := r.locker()
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}, After: lokitest.Pause{For: 10 * time.Millisecond}})
		var all []*loki.Lease
		for i := range 4000 {
			ls, err := b.Acquire(t.Context(), expiry, loki.WithResource(fmt.Sprint(i)))
			require.NoError(t, err)
			all = append(all, ls)
		}
		time.Sleep(10 * time.Second)
		require.NotEmpty(t, r.events(loki.KindMirrorLate))
		require.Len(t, r.log.reported(), 1, "once")
		r.secondary.plant(t, foreign(time.Hour))
		start := time.Now()
		err := b.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error { <-ctx.Done(); return nil })
		require.ErrorIs(t, err, loki.ErrConflict)
		require.Less(t, time.Since(start), expiry*3/2+2*loki.MirrorGrace)
		for _, ls := range all {
			_ = ls.Release(t.Context())
		}
	})
}
