package loki_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

func TestOccurrence_RunsOnce(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "in sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				tick := loki.WithOccurrence("2026-11-30", time.Hour)
				for i := range 3 {
					l := r.locker(change)
					if i == 0 {
						require.Equal(t, "job", r.requireRan(l, tick).Key)
						continue
					}
					for _, wait := range []time.Duration{0, loki.UntilDone} {
						start := time.Now()
						var out loki.Outcome
						err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick, loki.WithWait(wait), loki.WithOutcome(&out))
						require.ErrorIs(t, err, loki.ErrDone)
						require.ErrorIs(t, err, loki.ErrBusy)
						require.ErrorContains(t, err, `"job@2026-11-30" has been run already by `)
						require.NoError(t, loki.IgnoreBusy(err))
						require.False(t, out.Ran)
						require.Zero(t, time.Since(start), "it ends a wait")
					}
					require.Len(t, r.primary.mem.HeldKeys(), 1, "only the record is left")
				}
				require.Len(t, r.events(loki.KindDone), 4)

				r.requireRan(r.locker(change), loki.WithOccurrence("2026-12-01", time.Hour))
				time.Sleep(time.Hour)
				r.requireRan(r.locker(change), tick)
			})
		})
	}
}

func TestOccurrence_OneThatFailedIsFree(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		tick := loki.WithOccurrence("tick", time.Hour)
		require.Equal(t, errFn, a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return errFn }, tick))
		require.Panics(t, func() {
			_ = a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { panic("boom") }, tick)
		})
		r.requireEmpty()
		r.requireRan(b, tick)
		require.ErrorIs(t, a.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick), loki.ErrDone)
	})
}

func TestOccurrence_OfAResource(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.requireRan(l, loki.WithResource("a"), loki.WithOccurrence("x/y@z", time.Hour))
		r.requireRan(l, loki.WithResource("b"), loki.WithOccurrence("x/y@z", time.Hour))
		r.requireRan(l, loki.WithOccurrence("x/y@z", time.Hour))
		synctest.Wait()
		require.ElementsMatch(t, []string{"job/a@x%2Fy%40z", "job/b@x%2Fy%40z", "job@x%2Fy%40z"}, r.primary.mem.HeldKeys())
		require.ElementsMatch(t, r.primary.mem.HeldKeys(), r.secondary.mem.HeldKeys())
	})
}

// Each store alone knows what was run while the other one was away, or has forgotten it.
func TestOccurrence_IsKnownAcrossOutages(t *testing.T) {
	tick := loki.WithOccurrence("tick", time.Hour)
	t.Run("run during an outage of the primary", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			r.primary.fail(errDown)
			require.Equal(t, "secondary", r.requireRan(r.locker(), tick).Store)
			require.NotEmpty(t, r.events(loki.KindRecordFailed))
			r.primary.heal()
			other := r.locker() // an instance that has not noticed the outage
			require.ErrorIs(t, other.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick), loki.ErrBusy)
			time.Sleep(time.Minute)
			require.ErrorIs(t, other.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick), loki.ErrDone)
			require.NotEmpty(t, r.primary.mem.HeldKeys(), "the primary is told when it is back")
		})
	})
	t.Run("run before an outage of the primary", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			r.requireRan(r.locker(), tick)
			synctest.Wait() // for the mirrored release, which a fall-back would meet
			r.primary.fail(errDown)
			require.ErrorIs(t, r.locker().ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick), loki.ErrDone)
		})
	})
}

// What a crash, or a release that fails, leaves behind must not look like a success.
func TestOccurrence_ACrashDoesNotMarkItDone(t *testing.T) {
	tick := loki.WithOccurrence("tick", time.Hour)
	for name, after := range map[string]func(r *rig){
		"crash":                func(*rig) {},
		"only a failing store": func(r *rig) { r.primary.faults.Decide(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				other := newTestStore()
				other.mem = r.primary.mem
				other.faults = lokitest.NewFaults(other.mem)
				var gone atomic.Bool
				r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
					if op == lokitest.OpRelease && strings.Contains(c.Key, "@") {
						gone.Store(true) // right after the record was looked up, before it was given back
					}
					if gone.Load() {
						return lokitest.Fault{Err: errDown}
					}
					return lokitest.Fault{}
				})
				start := time.Now()
				_ = r.locker(alone).ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return errFn }, tick)
				require.Len(t, r.primary.mem.HeldKeys(), 2)
				after(r)

				l := r.locker(alone, func(c *loki.Config) { c.Primary = other.faults })
				for {
					err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, tick)
					require.NotErrorIs(t, err, loki.ErrDone)
					if err == nil {
						break
					}
					require.Less(t, time.Since(start), 2*time.Minute, "the occurrence is never run")
					time.Sleep(10 * time.Millisecond)
				}
			})
		})
	}
}

func TestOccurrence_Arguments(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		for want, opt := range map[string]loki.Option{
			"the occurrence is empty": loki.WithOccurrence("", time.Hour),
			"be remembered for 0s":    loki.WithOccurrence("a", 0),
			"UTF-16 units":            loki.WithOccurrence(strings.Repeat("a", 397), time.Hour),
		} {
			require.ErrorContains(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), opt), want)
		}
		_, err := l.Acquire(t.Context(), time.Minute, loki.WithOccurrence("a", time.Hour))
		require.ErrorContains(t, err, "is for closures")
		require.Empty(t, r.primary.Calls())
	})
}
