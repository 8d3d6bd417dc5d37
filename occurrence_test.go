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

// https://github.com/HabitRPG/habitica/issues/3547
func TestOccurrenceIDIsTheSameInEveryZone(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, scheduled := range []time.Time{
		time.Date(2026, 11, 30, 0, 30, 0, 0, berlin),
		time.Date(2026, 3, 29, 3, 30, 0, 0, berlin),
		time.Date(2026, 10, 25, 2, 30, 0, 0, berlin),
	} {
		for _, period := range []time.Duration{0, 15 * time.Minute, 7 * time.Hour, 24 * time.Hour, 36 * time.Hour, 7 * 24 * time.Hour} {
			want := loki.OccurrenceID(scheduled, period, berlin)
			for _, name := range []string{"UTC", "Pacific/Kiritimati", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"} {
				require.Equal(t, want, loki.OccurrenceID(scheduled.In(zone(t, name)), period, berlin), "%v %v %s", scheduled, period, name)
			}
		}
	}
}

func TestOccurrenceIDOfADayOnWhichTheClocksChange(t *testing.T) {
	berlin, london := zone(t, "Europe/Berlin"), zone(t, "Europe/London")
	const day = 24 * time.Hour

	twice := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC) // 02:30 comes twice, an hour apart
	require.Equal(t, twice.In(berlin).Format(time.TimeOnly), twice.Add(time.Hour).In(berlin).Format(time.TimeOnly))
	require.Equal(t, "2026-10-25", loki.OccurrenceID(twice, day, berlin))
	require.Equal(t, "2026-10-25", loki.OccurrenceID(twice.Add(time.Hour), day, berlin), "a daily job runs once")
	require.NotEqual(t, loki.OccurrenceID(twice, time.Hour, berlin), loki.OccurrenceID(twice.Add(time.Hour), time.Hour, berlin), "an hourly one both times")

	for _, moved := range []time.Duration{1*time.Hour + 30*time.Minute, 2*time.Hour + 30*time.Minute} { // 02:30 does not come
		at := time.Date(2026, 3, 29, 0, 0, 0, 0, berlin).Add(moved)
		require.Equal(t, "2026-03-29", loki.OccurrenceID(at, day, berlin), at)
	}

	for _, z := range []*time.Location{berlin, london} { // every day of three years has an id of its own, weeks have seven
		days, weeks := map[string]int{}, map[string]int{}
		for date := range 3 * 364 {
			at := time.Date(2025, 1, 6+date, 23, 59, 59, 0, z) // a Monday
			require.Equal(t, at.Format(time.DateOnly), loki.OccurrenceID(at, day, z))
			days[loki.OccurrenceID(at, day, z)]++
			weeks[loki.OccurrenceID(at, 7*day, z)]++
		}
		require.Len(t, days, 3*364)
		require.Len(t, weeks, 3*52)

		// Every six hours by the wall clock, with the period that the documentation advises.
		runs, ids := 0, map[string]bool{}
		for date := range 365 {
			for hour := 0; hour < 24; hour += 6 {
				runs++
				ids[loki.OccurrenceID(time.Date(2026, 1, 1+date, hour, 0, 0, 0, z), time.Hour, z)] = true
			}
		}
		require.Len(t, ids, runs)
	}
}

func TestOccurrenceIDIsAnOccurrence(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		at := time.Now().Add(1234567 * time.Nanosecond)
		for _, period := range []time.Duration{-1, 0, 1, time.Second, 24 * time.Hour} {
			id := loki.OccurrenceID(at, period, nil)
			r.requireRan(r.locker(), loki.WithOccurrence(id, time.Minute))
			synctest.Wait()
			require.ErrorIs(t, r.locker().ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithOccurrence(id, time.Minute)), loki.ErrDone)
			time.Sleep(time.Hour)
		}
	})
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}
