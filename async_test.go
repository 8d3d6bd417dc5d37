package loki_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// foreign is a claim of somebody whom no Locker of the test knows.
func foreign(expiry time.Duration) loki.Claim {
	return loki.Claim{Key: "job", Token: "foreign", Expiry: expiry, Holder: "somebody else"}
}

func (s *testStore) plant(t *testing.T, c loki.Claim) {
	t.Helper()
	held, err := s.mem.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
}

func TestScenario1_PrimaryGrantsAndTheSecondaryIsMirrored(t *testing.T) {
	for _, mode := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(mode.String(), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(func(c *loki.Config) { c.Mirror = mode })
				var out loki.Outcome
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					if mode == loki.MirrorSync {
						require.NotEmpty(t, r.secondary.mem.HeldKeys(), "fn started before the secondary had answered")
					}
					synctest.Wait()
					key, row := r.primary.held(t, "job"), r.secondary.held(t, "job")
					require.Equal(t, key.ID, row.ID)
					require.False(t, row.Until.After(key.Until), "the row outlives its key")

					time.Sleep(25 * time.Second) // two renewals
					synctest.Wait()
					key, row = r.primary.held(t, "job"), r.secondary.held(t, "job")
					require.WithinDuration(t, time.Now().Add(30*time.Second), key.Until, 10*time.Second)
					require.Equal(t, key.Until, row.Until, "the renewal is mirrored")
					return nil
				}, loki.WithOutcome(&out)))
				require.Equal(t, loki.Primary, out.Store)
				r.requireEmpty()

				locks := append(r.primary.Calls(lokitest.OpLock), r.secondary.Calls(lokitest.OpLock)...)
				for _, call := range locks {
					require.Equal(t, locks[0].Claim.Token, call.Claim.Token, "one claim, one token")
				}
				require.Len(t, r.secondary.Calls(lokitest.OpRelease), 1)
			})
		})
	}
}

func TestScenario2_BusyLeavesTheSecondaryAlone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.plant(t, foreign(time.Minute))
		err := r.requireBusy(r.locker())
		require.ErrorContains(t, err, "somebody else")
		synctest.Wait()
		require.Empty(t, r.secondary.Calls())
	})
}

func TestScenario3_UnavailableLetsTheSecondaryDecide(t *testing.T) {
	for _, mode := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(mode.String(), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a := r.locker(func(c *loki.Config) { c.Mirror = mode })
				b := r.locker(func(c *loki.Config) { c.Mirror = mode })
				r.primary.fail(errDown)
				require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					err := r.requireBusy(b)
					require.ErrorContains(t, err, r.secondary.held(t, "job").ID)
					time.Sleep(2 * time.Minute) // renewed through the secondary
					r.requireBusy(b)
					return nil
				}))
				r.requireEmpty()
				require.Equal(t, loki.Secondary, r.requireRan(b).Store)
				require.NotEmpty(t, r.events(loki.KindFellBack))

				r.primaryIsBack()
				require.Equal(t, loki.Primary, r.requireRan(a).Store)
				time.Sleep(time.Minute)
				r.requireEmpty()
			})
		})
	}
}

func TestPrimaryThatHangsIsGivenUpInTime(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.hang()
		for _, c := range []struct {
			expiry, deadline, want time.Duration
		}{
			{time.Minute, 0, loki.DefaultPrimaryTimeout},
			{600 * time.Millisecond, 0, 200 * time.Millisecond},           // a third of the expiry
			{time.Minute, 300 * time.Millisecond, 150 * time.Millisecond}, // half of what is left of ctx
		} {
			ctx := t.Context()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			var out loki.Outcome
			require.NoError(t, r.locker().ExecuteWithinLock(ctx, c.expiry, func(context.Context) error { return nil }, loki.WithOutcome(&out)))
			require.Equal(t, c.want, out.Waited)
			require.Equal(t, loki.Secondary, out.Store)
		}
	})
}

func TestPrimaryLostInMidRunDoesNotInterruptTheClosure(t *testing.T) {
	for _, mode := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(mode.String(), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a := r.locker(func(c *loki.Config) { c.Mirror = mode })
				b := r.locker(func(c *loki.Config) { c.Mirror, c.Observer = mode, nil }) // it may report the outage as well
				require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					synctest.Wait()
					r.primary.fail(errDown)
					time.Sleep(2 * time.Minute)
					require.NoError(t, ctx.Err())
					r.requireBusy(b)

					r.primary.heal()
					time.Sleep(time.Minute)
					require.NoError(t, ctx.Err())
					require.NotEmpty(t, r.primary.mem.HeldKeys(), "the lease went back to the primary")
					require.Len(t, r.events(loki.KindDown), 1, "one outage, one event")
					require.Len(t, r.events(loki.KindUp), 1, "and one of its end")
					r.requireBusy(b)
					return nil
				}))
				r.requireEmpty()
			})
		})
	}
}

// A call does not pay a second time for a primary that is down, when it gives the lock back.
func TestReleaseDoesNotWaitForAPrimaryThatIsDown(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.hang()
		start := time.Now()
		r.requireRan(l)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		require.Empty(t, r.secondary.mem.HeldKeys(), "the row is released before the call returns")

		r.primaryIsBack()
		start = time.Now()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			synctest.Wait()
			r.primary.hang()
			time.Sleep(3 * time.Second)
			start = time.Now()
			return ctx.Err()
		}))
		require.Zero(t, time.Since(start))
	})
}

// The primary restarts empty and grants the key to somebody who has no row.
func TestConflict_AsyncHolderWithoutTheRowYields(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(aCtx context.Context) error {
			synctest.Wait()
			for _, key := range r.primary.mem.HeldKeys() {
				require.NoError(t, r.primary.mem.Release(t.Context(), loki.Claim{Key: key, Token: r.primary.Calls(lokitest.OpLock)[0].Claim.Token}))
			}
			start := time.Now()
			err := b.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			require.ErrorIs(t, err, loki.ErrLockLost)
			require.ErrorIs(t, err, loki.ErrConflict)
			require.ErrorContains(t, err, strconv.Quote(r.secondary.held(t, "job").ID), "it names the other holder")
			require.GreaterOrEqual(t, time.Since(start), loki.MirrorGrace)
			require.Less(t, time.Since(start), loki.MirrorGrace+100*time.Millisecond)
			require.Empty(t, r.primary.mem.HeldKeys(), "who yields releases the primary")
			require.NotEmpty(t, r.events(loki.KindConflict))

			err = r.requireBusy(b) // now in sync order: fn does not even start
			require.ErrorContains(t, err, "the primary does not know")

			time.Sleep(time.Minute)
			require.NoError(t, aCtx.Err(), "who holds the row goes on")
			require.NotEmpty(t, r.primary.mem.HeldKeys(), "and takes the primary again")
			return nil
		}))
		r.requireEmpty()
		r.requireRan(b)
	})
}

func TestConflict_AsyncClosureThatEndsWhileItsWriteIsRefused(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.plant(t, foreign(time.Minute))
		l := r.locker()
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			synctest.Wait()
			return errFn
		})
		require.ErrorIs(t, err, loki.ErrLockLost)
		require.ErrorIs(t, err, loki.ErrConflict)
		require.ErrorIs(t, err, errFn)
		require.ErrorContains(t, err, `reports holder "somebody else"`, "it names the other holder")
		require.Equal(t, "foreign", r.requireForeign().Token)
	})
}

// The secondary names another holder, and then it is silent: the last answer counts.
func TestConflict_AsyncClosureThatEndsBetweenARefusalAndSilence(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.plant(t, foreign(time.Minute))
		l := r.locker()
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			synctest.Wait()
			r.secondary.hang(lokitest.OpLock)
			return nil
		})
		require.ErrorIs(t, err, loki.ErrConflict)
		r.requireForeign()
	})
}

// A secondary takes longer than a mirror write may, and is heard anyway.
func TestConflict_AsyncIsFoundThroughASlowSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 200 * time.Millisecond}, After: lokitest.Pause{For: 200 * time.Millisecond}})
		r.secondary.plant(t, foreign(time.Minute))
		l := r.locker()
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), time.Second, func(ctx context.Context) error { <-ctx.Done(); return nil })
		require.ErrorIs(t, err, loki.ErrConflict)
		require.Less(t, time.Since(start), 1500*time.Millisecond)
		r.requireForeign()
	})
}

// A changed password of the primary ends no running job, in whatever mode.
func TestRenewal_PermanentErrorOfThePrimaryEndsNoRunningJob(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(mode)
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 9*time.Second, func(ctx context.Context) error {
					r.primary.fail(errors.New("WRONGPASS invalid username-password pair"))
					time.Sleep(time.Minute)
					return ctx.Err()
				}))
				require.NotEmpty(t, r.events(loki.KindRefused))
				r.primary.heal()
			})
		})
	}
}

// Both stores have lost the record, and another instance may have held the lock meanwhile.
func TestRenewal_RecordsNothingAnewThatWasLost(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a, b := r.locker(mode), r.locker(mode)
				err := a.ExecuteWithinLock(t.Context(), 9*time.Second, func(ctx context.Context) error {
					time.Sleep(time.Second)
					token := r.primary.lastToken()
					r.primary.lose(t, token)
					r.secondary.lose(t, token)
					r.requireRan(b)
					<-ctx.Done()
					return nil
				})
				require.ErrorIs(t, err, loki.ErrNotHeld)
				require.ErrorContains(t, err, "has lost the record")
			})
		})
	}
}

// requireForeign checks that the planted row is untouched.
func (r *rig) requireForeign() loki.Claim {
	r.t.Helper()
	require.Equal(r.t, "somebody else", r.secondary.held(r.t, "job").ID)
	return foreign(0)
}

func TestConflict_SyncIsBusyAndFnNeverRuns(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.plant(t, foreign(time.Minute))
		l := r.locker(inSync)
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.ErrorContains(t, err, "somebody else")
		require.Empty(t, r.primary.mem.HeldKeys(), "who yields releases the primary before it says so")
		r.requireForeign()
	})
}

func TestConflict_AReleaseOnItsWayIsWaitedFor(t *testing.T) {
	for _, mode := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(mode.String(), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.secondary.plant(t, foreign(loki.MirrorGrace/2)) // gone within the grace
				l := r.locker(func(c *loki.Config) { c.Mirror = mode })
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					time.Sleep(time.Second)
					require.NotEqual(t, "somebody else", r.secondary.held(t, "job").ID)
					return ctx.Err()
				}))
			})
		})
	}
}

// A process releases the primary and dies before its row is released.
func TestRowOfADeadProcessIsSuperseded(t *testing.T) {
	for _, mode := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(mode.String(), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				dead := foreign(time.Hour)
				r.primary.plant(t, dead)
				r.secondary.plant(t, dead)
				dead.Mirrored = true
				require.NoError(t, r.primary.mem.Release(t.Context(), dead))

				l := r.locker(func(c *loki.Config) { c.Mirror = mode })
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					synctest.Wait()
					require.NotEqual(t, "somebody else", r.secondary.held(t, "job").ID)
					return nil
				}))
				require.Empty(t, r.events(loki.KindConflict))
				r.requireEmpty()
			})
		})
	}
}

func TestSync_NothingRunsWithoutTheSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync)
		r.secondary.fail(errDown)
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.Equal(t, []string{"secondary"}, handlersIn(err))
		require.EqualError(t, err, `loki: lock "job" not acquired: the secondary is unavailable, and MirrorSync needs it: secondary: dial tcp: connection refused`)

		noTable := errors.New("invalid object name")
		r.secondary.fail(noTable)
		err = l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, noTable)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
		require.EqualError(t, err, `loki: lock "job" not acquired: the secondary refused with a permanent error, and MirrorSync needs it: secondary: invalid object name`)
		r.requireEmpty()
	})
}

func TestSync_ARowThatCannotBeRenewedEndsTheLease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync)
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			r.secondary.fail(errDown)
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, loki.ErrLockLost)
		require.ErrorIs(t, err, loki.ErrExpired)
		require.LessOrEqual(t, time.Since(start), 30*time.Second-loki.Margin(30*time.Second))
	})
}

func TestSync_FenceIsTheSecondarys(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		high := foreign(time.Minute)
		high.Fence = 1 << 60
		r.secondary.plant(t, high)
		require.NoError(t, r.secondary.mem.Release(t.Context(), high))
		require.Greater(t, r.requireRan(r.locker(inSync)).Fence, high.Fence)
	})
}

func TestAsync_RunsOnThePrimaryAloneAndTheWriteStaysDue(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.fail(errDown)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			time.Sleep(5 * time.Second)
			require.Empty(t, r.secondary.mem.HeldKeys())
			r.secondary.heal()
			time.Sleep(10 * time.Second)
			require.NotEmpty(t, r.secondary.mem.HeldKeys(), "the write was given up")
			return ctx.Err()
		}))
		require.Len(t, r.events(loki.KindMirrorFailed), 1, "one lock, one event")
		require.Len(t, r.events(loki.KindDown), 1, "one outage, one event")
		require.Len(t, r.events(loki.KindUp), 1)
		r.requireEmpty()
	})
}

func TestAsync_ASecondaryThatRefusesByAMistakeIsToldOf(t *testing.T) {
	for name, before := range map[string]func(r *rig, l *loki.Locker){
		"in the background": func(*rig, *loki.Locker) {},
		"in sync order, after an outage": func(r *rig, l *loki.Locker) {
			r.primary.fail(errDown)
			r.requireRan(l)
			r.primaryIsBack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker()
				before(r, l)
				mistake := errors.New("the server does not take this password")
				r.secondary.fail(mistake)
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					time.Sleep(5 * time.Second)
					return nil
				}))
				refused := r.events(loki.KindRefused)
				require.Equal(t, slog.LevelError, refused[0].Level)
				require.ErrorIs(t, refused[0].Err, mistake)
				for _, e := range refused[1:] {
					require.Equal(t, slog.LevelDebug, e.Level, "no retry fixes it, and one line is enough")
				}
				require.Empty(t, r.events(loki.KindMirrorFailed), "it is no outage")
			})
		})
	}
}

func TestAsync_AfterAnOutageAKeyIsAcquiredInSyncOrder(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		r.requireRan(l)
		r.requireEmpty()
		r.primaryIsBack()
		r.secondary.plant(t, foreign(time.Minute)) // somebody fell back while the primary was down

		r.requireBusy(l)
		require.NoError(t, r.secondary.mem.Release(t.Context(), foreign(0)))
		r.requireRan(l)

		r.requireEmpty()
		r.secondary.plant(t, foreign(time.Minute))
		ran := false
		_ = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { ran = true; return nil })
		require.True(t, ran, "one mirror write has succeeded, so the next closure starts at once")
	})
}

func TestMirror_ClosureThatEndsBeforeItsWriteBeganNeedsNone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		// The first write of the key keeps its lane busy, so that those of the next closures cannot begin.
		r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 700 * time.Millisecond}})
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { synctest.Wait(); return nil }))
		for range 5 {
			r.requireRan(l)
		}
		time.Sleep(2 * time.Second)
		r.requireEmpty()
		require.Len(t, r.secondary.Calls(lokitest.OpLock), 1)
		require.Len(t, r.secondary.Calls(lokitest.OpRelease), 1)
	})
}

func TestMirror_OrderPerKey(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		for range 20 {
			r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 30 * time.Millisecond}})
			r.secondary.faults.Next(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}})
			require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil }))
		}
		time.Sleep(5 * time.Second)
		r.requireEmpty()
		calls := r.secondary.Calls()
		for i, call := range calls[1:] {
			require.False(t, call.Start.Before(calls[i].End), "%v was sent before %v had returned", call, calls[i])
		}
		require.Empty(t, r.events(loki.KindConflict))
	})
}

// Each write is answered by its first attempt after the second one has left. That there is a second one is all that a store
// has to bear for being slow.
func TestMirror_ASlowSecondaryIsAskedOnceForEachRenewal(t *testing.T) {
	for _, slow := range []time.Duration{0, loki.DefaultSecondaryTimeout / 3, loki.DefaultSecondaryTimeout * 2 / 3} {
		inRig(t, func(t *testing.T, r *rig) {
			r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: late(slow)})
			require.NoError(t, r.locker().ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
				time.Sleep(58 * time.Second) // and five renewals
				return ctx.Err()
			}))
			require.Len(t, r.secondary.firstAttempts(lokitest.OpLock), 6)
			require.Len(t, r.events(loki.KindMirrored), 6)
		})
	}
}

func TestMirror_PanicsAreErrorsAndEvents(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Panic: "driver bug"})
		r.requireRan(l)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error { synctest.Wait(); return ctx.Err() }))
		require.NotEmpty(t, r.events(loki.KindPanic))
		require.ErrorContains(t, r.events(loki.KindPanic)[0].Err, "driver bug")
	})
}

func TestAsync_SecondaryThatRefusesKeepsNobodyFromThePrimary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.fail(errors.New("there is no table"))
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
		l := r.locker()
		require.Error(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t)))
		ran := false // the primary is back
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { ran = true; return nil })
		require.NoError(t, err)
		require.True(t, ran, "the primary answers, and was not asked")
	})
}

// The mirror write of A is on its way when B, whose context is about to end, has no time for the primary's answer.
func TestAsync_CallerWithoutTimeDoesNotStartBesideAHolder(t *testing.T) {
	for name, opts := range map[string][]loki.Option{"plain": nil, "minimum hold": {loki.WithMinHold(5 * time.Second)}} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a, b := r.locker(), r.locker()
				r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Millisecond}, After: lokitest.Pause{For: 2 * time.Millisecond}})
				r.secondary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}}) // A's mirror write
				err := a.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					short, cancel := context.WithTimeout(t.Context(), 6*time.Millisecond)
					defer cancel()
					err := b.ExecuteWithinLock(short, 30*time.Second, func(context.Context) error {
						t.Error("B runs beside A")
						return nil
					}, opts...)
					require.Error(t, err)
					select {
					case <-time.After(10 * time.Second):
					case <-ctx.Done():
					}
					return nil
				})
				require.NoError(t, err, "A")
			})
		})
	}
}

// A's release in the secondary fails. While that is away, B runs, or tries to; nothing of B is recorded there. When it is back, the
// next holder may replace A's record, because the primary remembers A: B's write was not confirmed.
func TestMirror_ARecordFromBeforeAnOutageOfTheSecondaryEndsNoJob(t *testing.T) {
	for name, failure := range map[string]error{"unknown outcome": errDown, "not sent": loki.NotSent(errDown)} {
		for mode, change := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
			for _, between := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d runs meanwhile", name, mode, between), func(t *testing.T) {
					inRig(t, func(t *testing.T, r *rig) {
						run := func(holder string, d time.Duration, ending func()) error {
							l := r.locker(change, func(c *loki.Config) { c.Holder = holder })
							return l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
								retry.Sleep(ctx, d)
								ending()
								return nil
							})
						}
						require.NoError(t, run("a", 2*time.Second, func() { r.secondary.fail(failure) }))
						for range between {
							time.Sleep(time.Second)
							err := run("b", time.Second, func() {})
							require.Equal(t, mode == "sync", err != nil, err)
						}
						time.Sleep(time.Duration(7-2*between) * time.Second) // within the pause before A's release is tried again
						r.secondary.heal()
						require.NoError(t, run("c", 10*time.Second, func() {}))
						require.Empty(t, r.events(loki.KindConflict))
					})
				})
			}
		}
	}
}

// The mirror write finds an earlier record of its own process, which is not the latest of those whose release was not confirmed.
func TestMirror_ReplacesAnEarlierRecordOfItsProcessAtOnce(t *testing.T) {
	for _, between := range []int{1, 20, 100} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker()
			run := func(d time.Duration, ending func()) {
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					retry.Sleep(ctx, d)
					ending()
					return nil
				}))
			}
			run(time.Second, func() { r.secondary.fail(errDown) })
			for range between {
				run(5*time.Second/time.Duration(between), func() {})
			}
			time.Sleep(2 * time.Second) // within the pause before the first release is tried again
			r.secondary.heal()
			run(10*time.Second, func() {})
			require.Empty(t, r.events(loki.KindConflict))
		})
	}
}

func TestConflict_IsOneEvent(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.plant(t, foreign(time.Minute))
		ls, err := r.locker().Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		synctest.Wait()
		r.secondary.hang()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { require.ErrorIs(t, ls.Release(t.Context()), loki.ErrConflict) })
		}
		wg.Wait()
		require.Len(t, r.events(loki.KindConflict), 1)
	})
}

// A closure ends before its mirror write is answered, and its process is gone before the release. The next holder replaces the
// record, because the primary remembers it.
func TestMirror_AWriteUnderWayAtTheReleaseIsRemembered(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		run := func(d time.Duration) {
			require.NoError(t, r.locker().ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
				retry.Sleep(ctx, d)
				return nil
			}))
		}
		run(time.Second)
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 30 * time.Millisecond}})
		r.secondary.hang(lokitest.OpRelease)
		run(time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		run(10 * time.Second)
		require.Empty(t, r.events(loki.KindConflict))
	})
}

// A's release in the secondary fails, and B's record takes the place of A's, but the reply is lost. C's mirror write names A first, is
// refused by B's record, which is of this process, and meets an outage when it names B. The primary is well all the time.
func TestMirror_RefusedByARecordOfItsOwnProcessEndsNoJob(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		run := func(d time.Duration) {
			t.Helper()
			require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(d)
				return nil
			}))
		}
		r.secondary.faults.Set(lokitest.OpRelease, lokitest.Fault{Err: errFn})
		run(50 * time.Millisecond)
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Err: errFn, LostReply: true})
		run(50 * time.Millisecond)
		r.secondary.heal()
		locks := 0
		r.secondary.faults.Decide(func(op lokitest.Op, _ loki.Claim) lokitest.Fault {
			if op == lokitest.OpLock {
				if locks++; locks == 1 {
					return lokitest.Fault{}
				}
			}
			return lokitest.Fault{Err: errDown}
		})
		run(50 * time.Millisecond)
		for range 14 {
			run(time.Millisecond)
			time.Sleep(3 * time.Second)
		}
	})
}

// The secondary is slower than these calls can wait. It names another holder when the first one has started without its answer, and
// while the second one waits for the key's turn.
func TestSuspect_RefusalThatComesWhileACallWaitsForItsTurn(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		r.requireRan(l)
		r.primaryIsBack() // the key is suspect
		r.secondary.plant(t, foreign(time.Minute))
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
		r.secondary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: time.Second}})
		const expiry = 240 * time.Millisecond // a third of it is for the secondary
		require.NoError(t, l.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { return nil }))
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), expiry, mustNotRun(t)), loki.ErrBusy)
		r.secondary.heal()
		require.NoError(t, r.secondary.mem.Release(t.Context(), foreign(0)))
	})
}

// A mirror write that left between the secondary's answer to a renewal and the change of authority would end the record with the
// primary's, and the lease with it.
func TestRenewal_NoMirrorWriteOvertakesFallingBack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		ls, err := r.locker().Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.True(t, loki.MirrorDueAfterRenewal(ls), "with the primary's new end")
		r.primary.fail(errDown)
		require.False(t, loki.MirrorDueAfterRenewal(ls))
		r.primary.heal()
		require.NoError(t, ls.Release(t.Context()))
	})
}
