package loki_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// With the primary down, the secondary is asked for one key by one caller at a time. All of them are busy, and soon.
func TestFallBackIsBusyForAnyNumberOfCallers(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		r.primary.fail(errDown)
		held, err := other.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		half := lokitest.Pause{For: 50 * time.Millisecond}
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: half, After: half})
		before := len(r.secondary.Calls(lokitest.OpLock))
		start := time.Now()
		var all sync.WaitGroup
		for i := range 1_000 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				start := time.Now()
				var busy *loki.BusyError
				if err := r.try(l); !errors.As(err, &busy) || busy.Holder.ID == "" {
					t.Error(err)
				}
				if took := time.Since(start); took > 4*half.For {
					t.Errorf("took %v", took)
				}
			})
		}
		all.Wait()
		require.Less(t, time.Since(start), 2*time.Second)
		require.Less(t, len(r.secondary.Calls(lokitest.OpLock))-before, 20)
		require.NoError(t, held.Release(t.Context()))
		r.secondary.heal()
		r.requireRan(l)
	})
}

// A caller that comes after a release is not refused for who held the lock before it.
func TestFallBackIsNotBusyAfterARelease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		held, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		other := r.locker()
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 300 * time.Millisecond}})
		var all sync.WaitGroup
		all.Go(func() { r.requireBusy(other) })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, held.Release(t.Context()))
		r.requireRan(other)
		all.Wait()
	})
}

// The secondary decides, and is slow. A caller that had to wait for its turn has the time of a call from then on.
func TestFallBackBehindASlowCallIsBusy(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		slow := lokitest.Fault{Before: lokitest.Pause{For: 800 * time.Millisecond}, After: lokitest.Pause{For: 800 * time.Millisecond}}
		r.secondary.faults.Set(lokitest.OpLock, slow)
		r.primary.fail(errDown)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			first <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { time.Sleep(10 * time.Second); return nil })
		}()
		time.Sleep(100 * time.Millisecond)
		go func() { second <- l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t)) }()
		require.ErrorIs(t, <-second, loki.ErrBusy)
		require.NoError(t, <-first)
	})
}

func TestReconciler_OneSlowReleaseIsNoOverload(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			synctest.Wait()
			r.secondary.nextCall(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 1 << 62}})
			return nil
		}))
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			time.Sleep(8 * time.Second)
			return nil
		}))
		require.Empty(t, r.events(loki.KindMirrorLate))
	})
}

func TestReconciler_ProcessReplacesItsOwnRecordWhateverThePrimaryRemembers(t *testing.T) {
	for _, remembers := range []bool{false, true} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker()
			if remembers { // an ordinary run a moment before the outage
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					synctest.Wait()
					return nil
				}))
			}
			r.primary.fail(errDown)
			require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				r.secondary.fail(errDown, lokitest.OpRelease)
				return nil
			}))
			r.primary.heal()
			time.Sleep(2 * loki.BreakerMaxPause)
			err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(time.Second)
				return nil
			})
			require.NoError(t, err, "remembers %v", remembers)
		})
	}
}

// The record is that of the first of many calls that failed.
func TestReconciler_ProcessReplacesItsOwnRecordAlsoIfItIsNotTheLatest(t *testing.T) {
	for _, calls := range []int{1, 20} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker(alone)
			r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Err: errDown, LostReply: true})
			r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Err: errDown})
			for range calls {
				require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t)), loki.ErrUnavailable)
				r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Err: errDown})
				time.Sleep(time.Second)
			}
			r.primary.heal()
			err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil })
			require.NoError(t, err, "%d calls", calls)
		})
	}
}

// Two Lockers have one holder name, as two in one process have, and the first has two records that it could not roll back. The
// other one's holds the key, so the first asks once more, with the older token, and gets no answer.
func TestReconciler_RefusalStandsWhateverTheNextTokenComesTo(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, other := r.locker(mode), r.locker(mode)
				r.primary.fail(errDown)
				r.secondary.fail(errDown)
				for range 2 {
					require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
				}
				r.secondary.heal()
				r.primary.heal()
				locks := 0
				r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
					if c.Key != "job" {
						return lokitest.Fault{}
					}
					if op == lokitest.OpLock {
						locks++
					}
					if op == lokitest.OpRelease || locks > 2 {
						return lokitest.Fault{Err: errDown}
					}
					return lokitest.Fault{}
				})
				time.Sleep(2 * loki.BreakerMaxPause)
				r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Second}}) // no mirror write yet
				require.NoError(t, other.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					r.requireBusy(l)
					require.Equal(t, 3, locks)
					return nil
				}))
			})
		})
	}
}
