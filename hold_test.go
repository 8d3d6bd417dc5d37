package loki_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// lateRenewal has the next renewal reach the primary a second after it was sent, whatever its context says.
func (r *rig) lateRenewal() {
	r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{Before: late(time.Second)}, lokitest.Fault{Before: late(time.Second)})
}

// A renewal that is under way when fn returns lands after the hold was set, and sets another end.
func TestMinHold_IsKeptWhateverLandsLate(t *testing.T) {
	for name, tt := range map[string]struct{ expiry, works, hold time.Duration }{
		"longer than the expiry":  {3 * time.Second, 1100 * time.Millisecond, time.Minute},
		"shorter than the expiry": {30 * time.Minute, 10*time.Minute + 100*time.Millisecond, 10*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a, b := r.locker(alone), r.locker(alone)
				r.lateRenewal()
				start := time.Now()
				require.NoError(t, a.ExecuteWithinLock(t.Context(), tt.expiry, func(context.Context) error {
					time.Sleep(tt.works)
					return nil
				}, loki.WithMinHold(tt.hold)))
				for time.Since(start) < tt.hold-100*time.Millisecond {
					r.requireBusy(b)
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(2*time.Second + 100*time.Millisecond)
				r.requireRan(b)
			})
		})
	}
}

// The hold counts from the grant, however long that was on its way.
func TestMinHold_CountsFromTheGrant(t *testing.T) {
	for _, mode := range []func(*loki.Config){alone, func(*loki.Config) {}, inSync} {
		inRig(t, func(t *testing.T, r *rig) {
			a, b := r.locker(mode), r.locker(mode)
			slow := lokitest.Fault{After: lokitest.Pause{For: 100 * time.Millisecond}}
			r.primary.faults.Next(lokitest.OpLock, slow)
			r.secondary.faults.Next(lokitest.OpLock, slow)
			r.requireRan(a, loki.WithMinHold(time.Minute))
			time.Sleep(time.Minute - 50*time.Millisecond)
			r.requireBusy(b)
			time.Sleep(100 * time.Millisecond)
			r.requireRan(b)
		})
	}
}

// The primary was down when fn returned. When it is back, another instance has just acquired it, and backs off: the hold is
// set there as soon as that one has gone.
func TestMinHold_IsSetInThePrimaryAfterAnotherHasBackedOff(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker(alone)
		r.primary.fail(loki.NotSent(errDown))
		r.requireRan(a, loki.WithMinHold(time.Minute))
		synctest.Wait() // the first attempt to set the hold there has failed
		other := foreign(2 * time.Second)
		r.primary.heal()
		r.primary.plant(t, other)
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, r.primary.mem.Release(t.Context(), other))
		time.Sleep(10 * time.Second)
		r.requireBusy(b)
		time.Sleep(time.Minute)
		r.requireRan(b)
	})
}

// A release that comes less than a round trip before the end of the hold is confirmed as any other.
func TestMinHold_IsConfirmedUntilItsEnd(t *testing.T) {
	for _, early := range []time.Duration{10 * time.Millisecond, time.Millisecond, time.Nanosecond, 0} {
		inRig(t, func(t *testing.T, r *rig) {
			a, b := r.locker(alone), r.locker(alone)
			for _, op := range everyOp {
				r.primary.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}})
			}
			ls, err := a.Acquire(t.Context(), 30*time.Second, loki.WithMinHold(5*time.Second))
			require.NoError(t, err)
			time.Sleep(5*time.Second - early)
			require.NoError(t, ls.Release(t.Context()))
			require.Empty(t, r.events(loki.KindReleaseFailed))
			time.Sleep(early + 2*time.Millisecond)
			r.requireRan(b)
		})
	}
}

// The mirror write had not begun when fn returned: the hold is written to the secondary in its place.
func TestMinHold_IsInTheSecondaryToo(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 40 * time.Millisecond}})
		for i := range loki.MirrorSlots { // other locks of this instance are being mirrored
			ls, err := a.Acquire(t.Context(), time.Minute, loki.WithResource(string(rune('a'+i))))
			require.NoError(t, err)
			defer func() { require.NoError(t, ls.Release(t.Context())) }()
		}
		r.requireRan(a, loki.WithMinHold(time.Minute))
		time.Sleep(10 * time.Second)
		r.primary.fail(errDown)
		r.requireBusy(b)
		time.Sleep(time.Minute)
		r.requireRan(b)
	})
}

// The primary was down when fn returned: the hold is set there when it is back.
// A closure of one instance follows that of another, and is over before the release of that one reaches the secondary.
func TestMinHold_IsInTheSecondaryAfterAHandOver(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(forgetful(r)), r.locker(forgetful(r))
		held := hold(t, a, 30*time.Second)
		time.Sleep(500 * time.Millisecond)
		r.secondary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
		require.NoError(t, held.end())
		granted := time.Now()
		r.requireRan(b, loki.WithMinHold(10*time.Second)) // returns at once, or when the secondary has agreed: which of the two came first is chance
		time.Sleep(time.Second)
		require.InDelta(t, 10*time.Second-time.Since(granted), r.secondary.held(t, "job").Left, float64(time.Millisecond))
		time.Sleep(10 * time.Second)
		r.requireEmpty()
	})
}

func TestMinHold_IsInThePrimaryWhenThatIsBack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker(alone)
		require.NoError(t, a.ExecuteWithinLock(t.Context(), 10*time.Second, func(context.Context) error {
			r.primary.fail(errDown)
			time.Sleep(20 * time.Second)
			return nil
		}, loki.WithMinHold(2*time.Minute)))
		r.primaryIsBack()
		time.Sleep(10 * time.Second)
		r.requireBusy(b)
		time.Sleep(2 * time.Minute)
		r.requireRan(b)
	})
}

// The primary's record may be about to end when fn returns, so a hold is not set there after a secondary that is silent.
func TestHold_SecondaryThatHangsDoesNotDelayItInThePrimary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(inSync), r.locker(inSync)
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(27*time.Second + 500*time.Millisecond)
				r.secondary.hang()
				time.AfterFunc(4*time.Second, r.secondary.heal)
				return nil
			}, loki.WithMinHold(time.Minute), loki.WithoutRenewal()))
		})
		synctest.Wait()
		for time.Since(begin) < time.Minute-time.Second {
			r.requireBusy(b)
			time.Sleep(100 * time.Millisecond)
		}
		wg.Wait()
	})
}
