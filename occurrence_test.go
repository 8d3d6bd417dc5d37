package loki_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
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
			require.Equal(t, loki.Secondary, r.requireRan(r.locker(), tick).Store)
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

// readStore is a store whose completion records are read slowly, or not at all.
type readStore struct {
	*testStore
	inspect func(ctx context.Context) error // before each read
}

func (s *readStore) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if s.inspect != nil {
		if err := s.inspect(ctx); err != nil {
			return loki.Holder{}, false, err
		}
	}
	return s.mem.Inspect(ctx, key)
}

func readWith(r *rig, inspect func(ctx context.Context) error) func(*loki.Config) {
	return func(c *loki.Config) {
		c.Primary = &readStore{r.primary, inspect}
		if c.Secondary != nil {
			c.Secondary = &readStore{r.secondary, inspect}
		}
	}
}

// The look at the completion record makes no record: whatever becomes of it, the lock is free at once.
func TestOccurrence_LooksUpWithoutATrace(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, tt := range map[string]struct {
		inspect func(context.Context) error
		fnErr   error
		want    error
	}{
		"fn fails":                  {nil, errFn, errFn},
		"no answer":                 {hang, nil, loki.ErrUnavailable},
		"outage":                    {func(context.Context) error { return errDown }, nil, loki.ErrUnavailable},
		"the caller has a deadline": {hang, nil, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []func(*loki.Config){alone, func(*loki.Config) {}, inSync} {
				inRig(t, func(t *testing.T, r *rig) {
					a, b := r.locker(mode, readWith(r, tt.inspect)), r.locker(mode)
					ctx := t.Context()
					if errors.Is(tt.want, context.DeadlineExceeded) {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
						defer cancel()
					}
					err := a.ExecuteWithinLock(ctx, 10*time.Minute, func(context.Context) error { return tt.fnErr }, loki.WithOccurrence("tick", time.Hour))
					require.ErrorIs(t, err, tt.want)
					time.Sleep(time.Second)
					r.requireRan(b, loki.WithOccurrence("tick", time.Hour))
					require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithOccurrence("tick", time.Hour)), loki.ErrDone)
				})
			}
		})
	}
}

// The lease ends while its occurrence is looked up: fn is not started, and the error says what happened.
func TestOccurrence_LeaseEndsDuringTheLook(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(alone, readWith(r, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		err := a.ExecuteWithinLock(t.Context(), 300*time.Millisecond, mustNotRun(t), loki.WithOccurrence("tick", time.Hour), loki.WithoutRenewal())
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.NotErrorIs(t, err, loki.ErrLockLost, "fn did not run")
		require.ErrorContains(t, err, "lost while the occurrence was looked up: the lease expired")

		a = r.locker(alone, readWith(r, func(context.Context) error {
			time.Sleep(450 * time.Millisecond)
			return nil
		}))
		go func() {
			time.Sleep(100 * time.Millisecond)
			_ = r.primary.mem.Release(t.Context(), r.primary.Calls(lokitest.OpLock)[1].Claim)
		}()
		err = a.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t), loki.WithOccurrence("tick", time.Hour))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.ErrorContains(t, err, "the store no longer holds the claim")
		require.Empty(t, r.events(loki.KindLost), "fn did not run")
	})
}

// The secondary names another holder while the completion record is read: the call is busy, and no run has lost its lock.
func TestOccurrence_AConflictBeforeFnRunsIsNoLoss(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(func(c *loki.Config) {
			c.Primary = &readStore{r.primary, func(context.Context) error { time.Sleep(400 * time.Millisecond); return nil }}
			c.Secondary = &readStore{r.secondary, nil}
		})
		r.secondary.plant(t, foreign(time.Minute))
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown}) // the request before the start
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithOccurrence("tick", time.Hour))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.Len(t, r.events(loki.KindConflict), 1)
		require.Empty(t, r.events(loki.KindLost))
	})
}

// A wait goes on after such a conflict, as after any other busy answer.
func TestOccurrence_AConflictEndsNoWait(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(func(c *loki.Config) {
			c.Primary = &readStore{r.primary, func(context.Context) error { time.Sleep(400 * time.Millisecond); return nil }}
			c.Secondary = &readStore{r.secondary, nil}
		})
		r.secondary.plant(t, foreign(10*time.Second))
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown}) // the request before the start
		r.requireRan(l, loki.WithOccurrence("tick", time.Hour), loki.WithWait(time.Minute))
		require.NotEmpty(t, r.events(loki.KindConflict))
		time.Sleep(time.Hour)
	})
}

// A completion record whose first write failed is written later, although the process had no reason to wait for it.
func TestOccurrence_IsRecordedAfterAFailedWrite(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(alone), r.locker(alone)
		tick := loki.WithOccurrence("tick", time.Hour)
		require.NoError(t, a.ExecuteWithinLock(t.Context(), 10*time.Second, func(context.Context) error {
			r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
			return nil
		}, tick))
		require.Len(t, r.events(loki.KindRecordFailed), 1)
		r.requireBusy(b, tick) // the lock is kept, since the record is missing
		time.Sleep(time.Minute)
		require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), 10*time.Second, mustNotRun(t), tick), loki.ErrDone)
		time.Sleep(2 * time.Hour)
		r.requireEmpty()
	})
}

// A store whose answer comes after the second attempt has been sent has recorded the run: the lock is free at once.
func TestOccurrence_TheLockIsFreeAfterASlowStoreHasRecordedTheRun(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "in sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
					if op == lokitest.OpLock && strings.Contains(c.Key, "@") {
						return lokitest.Fault{Before: lokitest.Pause{For: loki.DefaultPrimaryTimeout * 2 / 5}}
					}
					return lokitest.Fault{}
				})
				a, b := r.locker(mode), r.locker(mode)
				r.requireRan(a, loki.WithOccurrence("1", time.Hour))
				r.requireRan(b, loki.WithOccurrence("2", time.Hour))
				require.Empty(t, r.events(loki.KindRecordFailed))
			})
		})
	}
}

// A handler that cannot be read is refused, in a sentence, before anything is sent.

// Another instance runs the occurrence under a record in the secondary that the primary does not know, and this one reads
// before that run is recorded. It reads again when the other instance has released the lock.
func TestOccurrence_IsReadAgainAfterTheOtherHolderHasReleased(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		tick := loki.WithOccurrence("tick", time.Hour)
		a, b := r.locker(), r.locker(readWith(r, func(context.Context) error {
			time.Sleep(40 * time.Millisecond)
			return nil
		}))
		r.primary.fail(errDown)
		running, done := make(chan struct{}), make(chan error)
		go func() {
			done <- a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
				close(running)
				time.Sleep(150 * time.Millisecond)
				return nil
			}, tick)
		}()
		<-running
		r.primary.heal()
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown}) // b may start, and its mirror write is refused then
		require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), tick), loki.ErrDone)
		require.NoError(t, <-done)
		time.Sleep(2 * time.Hour)
	})
}

// A store that is down is waited for once, and neither for the look nor for the record.
func TestOccurrence_WaitsOnceForAStoreThatIsDown(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		l := r.locker(func(c *loki.Config) { c.Primary = &readStore{r.primary, hang} })
		r.primary.hang()
		start := time.Now()
		r.requireRan(l, loki.WithOccurrence("tick", time.Hour))
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		require.Len(t, r.events(loki.KindFellBack), 1)
	})
}

func TestOccurrence_NeedsStoresThatCanBeRead(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		for store, change := range map[string]func(*loki.Config){
			"primary":   func(c *loki.Config) { c.Primary = struct{ loki.LockHandler }{r.primary} },
			"secondary": func(c *loki.Config) { c.Secondary = struct{ loki.LockHandler }{r.secondary} },
		} {
			err := r.locker(change).ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithOccurrence("tick", time.Hour))
			require.ErrorContains(t, err, "the "+store+" lock handler (struct { loki.LockHandler }) is no Inspector")
		}
		require.Empty(t, r.primary.Calls())
	})
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

func TestOccurrence_NegativeWaitSkips(t *testing.T) {
	for _, wait := range []time.Duration{0, -1} {
		inRig(t, func(t *testing.T, r *rig) {
			_, err := r.secondary.mem.Lock(t.Context(), loki.Claim{Key: "job", Token: "foreign", Holder: "foreign", Expiry: time.Hour})
			require.NoError(t, err)
			r.secondary.nextCall(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 1 << 62}})
			r.primary.faults.Set(lokitest.OpInspect, lokitest.Fault{Before: lokitest.Pause{For: 50 * time.Millisecond}})
			l := r.locker()
			err = l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithOccurrence("today", time.Hour), loki.WithWait(wait))
			require.ErrorIs(t, err, loki.ErrBusy)
			require.Len(t, r.primary.firstAttempts(lokitest.OpLock), 1, "a wait of %v", wait)
		})
	}
}

// A request that failed may be carried out yet, so the record is asked for again, but not for as long as it is kept.
func TestOccurrence_RecordIsSettledSoonAfterAFailure(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown, LostReply: true})
			return nil
		}, loki.WithOccurrence("today", 100*time.Hour)))
		time.Sleep(2 * time.Minute)
		before := len(r.primary.Calls())
		time.Sleep(50 * time.Hour)
		require.Len(t, r.primary.Calls(), before)
		time.Sleep(50 * time.Hour)
	})
}

func TestOccurrence_CallerThatCancelsDoesNotWaitForTheRelease(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				ctx, cancel := context.WithCancel(t.Context())
				r.primary.hang(lokitest.OpInspect)
				time.AfterFunc(50*time.Millisecond, func() {
					r.primary.hang()
					r.secondary.hang()
					cancel()
				})
				begin := time.Now()
				err := l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t), loki.WithOccurrence("1", time.Hour))
				require.ErrorIs(t, err, context.Canceled)
				require.LessOrEqual(t, time.Since(begin), 150*time.Millisecond)
			})
		})
	}
}

// slowReader is a store of two methods that can be read, slowly, and whose releases are never confirmed.
type slowReader struct {
	mem  *memhandler.Handler
	lock func(loki.Claim) (bool, error) // nil: mem's
}

func (s *slowReader) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	if s.lock != nil {
		return s.lock(c)
	}
	return s.mem.Lock(ctx, c)
}

func (s *slowReader) Release(ctx context.Context, c loki.Claim) error {
	return errors.Join(s.mem.Release(ctx, c), errFn)
}

func (s *slowReader) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	h, held, err := s.mem.Inspect(ctx, key)
	if s.lock != nil {
		time.Sleep(200 * time.Millisecond)
	}
	return h, held, err
}

// The secondary holds the key for an instance that runs the occurrence. While its record is read, a mirror write is refused, the
// other instance completes the occurrence and releases, and the same mirror write is granted with its next request.
func TestOccurrence_ReadBesideARefusalIsReadAgain(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		s := &slowReader{mem: memhandler.New()}
		l := r.locker(func(c *loki.Config) { c.Secondary = s })
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			time.Sleep(50 * time.Millisecond) // its release is not confirmed: a refusal may be its record
			return nil
		}))
		time.Sleep(20 * time.Millisecond)
		other := loki.Claim{Key: "job", Token: "other", Expiry: 30 * time.Second, Holder: "other"}
		held, err := s.mem.Lock(t.Context(), other)
		require.NoError(t, err)
		require.True(t, held)
		requests := 0
		s.lock = func(c loki.Claim) (bool, error) {
			if c.Key != "job" {
				return s.mem.Lock(t.Context(), c)
			}
			requests++
			if requests == 1 { // before the start
				return false, errors.New("permission denied")
			}
			held, err := s.mem.Lock(t.Context(), c)
			if requests == 2 {
				require.False(t, held)
				_, done := s.mem.Lock(t.Context(), loki.Claim{Key: "job@monday", Token: "other", Expiry: time.Hour, Holder: "other"})
				require.NoError(t, errors.Join(done, s.mem.Release(t.Context(), other)))
			}
			return held, err
		}
		err = l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithOccurrence("monday", time.Hour))
		require.ErrorIs(t, err, loki.ErrDone)
		require.GreaterOrEqual(t, requests, 3)
	})
}
