package loki_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// forget has a store lose whatever holds the lock, as FLUSHALL does.
func (s *testStore) forget(t *testing.T) {
	t.Helper()
	for _, c := range s.Calls(lokitest.OpLock) {
		require.NoError(t, s.mem.Release(t.Context(), loki.Claim{Key: c.Claim.Key, Token: c.Claim.Token}))
	}
}

func (r *rig) requireLost(err error, events int) {
	r.t.Helper()
	require.ErrorIs(r.t, err, loki.ErrLockLost)
	require.ErrorIs(r.t, err, loki.ErrNotHeld)
	require.Len(r.t, r.events(loki.KindLost), events)
}

func TestRelease_ReportsALockThatTheStoreHasForgotten(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.forget(t)
			r.requireRan(r.locker(alone))
			return errFn
		}, loki.WithMinHold(0))
		r.requireLost(err, 1)
		require.ErrorIs(t, err, errFn)
		require.ErrorContains(t, err, "the primary had lost it before it was released")

		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.forget(t)
		err = ls.Release(t.Context())
		r.requireLost(err, 2)
		require.Equal(t, err, ls.Release(t.Context()))
	})
}

func TestRelease_ReportsAMinimumHoldThatCannotBeKept(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.requireLost(l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.forget(t)
			return nil
		}, loki.WithMinHold(time.Hour)), 1)
		r.requireRan(l, loki.WithMinHold(time.Second))
		r.requireBusy(l)
		require.Len(t, r.events(loki.KindLost), 1)
	})
}

func TestRelease_TheRecordInTheSecondaryKeptOthersOut(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			synctest.Wait() // it is mirrored
			r.primary.forget(t)
			return nil
		}))
		require.Empty(t, r.events(loki.KindLost))
		found := r.events(loki.KindReleased)
		require.Len(t, found, 2)
		require.ErrorContains(t, errors.Join(found[0].Err, found[1].Err), "did not hold the claim any more")
	})
}

func TestRelease_NoRecordInTheSecondaryKeptOthersOut(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, r *rig){
		"not mirrored": func(*testing.T, *rig) {},
		"lost too": func(t *testing.T, r *rig) {
			synctest.Wait()
			r.secondary.forget(t)
		},
		"silent": func(_ *testing.T, r *rig) {
			synctest.Wait()
			r.secondary.hang()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				if name == "not mirrored" {
					r.secondary.hang()
				}
				l := r.locker()
				r.requireLost(l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					lose(t, r)
					r.primary.forget(t)
					return nil
				}), 1)
			})
		})
	}
}

// What the lease relies on in this mode is the record in the secondary.
func TestRelease_InSyncTheSecondaryDecides(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.forget(t)
			return nil
		}))
		r.requireLost(l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.secondary.forget(t)
			return nil
		}), 1)
	})
}

// A release that may have found the work of an earlier one, or an expired claim, reports no loss.
func TestRelease_NotHeldIsNoLossWhereItIsNotCertain(t *testing.T) {
	slow := lokitest.Fault{After: lokitest.Pause{For: 200 * time.Millisecond}}
	for name, faults := range map[string][]lokitest.Fault{
		"the reply was lost":     {{LostReply: true, Err: errDown}},
		"the reply is late":      {slow},
		"the request is late":    {{Before: late(700 * time.Millisecond)}},
		"both replies were lost": {{After: swallowed}, {After: swallowed}},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				r.primary.faults.Next(lokitest.OpRelease, faults...)
				r.requireRan(l)
				time.Sleep(time.Minute)
				require.Empty(t, r.events(loki.KindLost))
			})
		})
	}
	t.Run("the claim may have expired", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker(alone)
			require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error {
				time.Sleep(900 * time.Millisecond)
				r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 110 * time.Millisecond}})
				return nil
			}, loki.WithoutRenewal()))
			require.Empty(t, r.events(loki.KindLost))
		})
	})
	t.Run("the store cannot tell", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			l, err := loki.New(loki.Config{ServiceKey: "job", Primary: twoMethods{r.primary}, Observer: r.log.observe})
			require.NoError(t, err)
			require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
				r.primary.forget(t)
				return nil
			}))
			require.NoError(t, l.Close(t.Context()))
			require.Empty(t, r.events(loki.KindLost))
		})
	})
}

// A service that was asked to stop: https://github.com/google/trillian/issues/3789

func TestRelease_IsMadeWhateverTheContextSays(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(mode)
				ctx, cancel := context.WithCancel(t.Context())
				ls, err := l.Acquire(ctx, time.Minute)
				require.NoError(t, err)
				cancel()
				for _, s := range []*testStore{r.primary, r.secondary} {
					s.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
				}
				require.NoError(t, ls.Release(ctx))
				require.Empty(t, r.primary.mem.HeldKeys(), "the process may exit now")
				require.Empty(t, r.secondary.mem.HeldKeys())
			})
		})
	}
}

func TestRelease_SaysThatItIsNotConfirmed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ctx, cancel := context.WithCancel(t.Context())
		ls, err := l.Acquire(ctx, time.Minute)
		require.NoError(t, err)
		cancel()
		r.primary.hang()
		start := time.Now()
		err = ls.Release(ctx)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start), "a store that hangs does not keep a process from its exit")
		var handlerErr *loki.HandlerError
		require.ErrorAs(t, err, &handlerErr)
		require.Equal(t, loki.OpRelease, handlerErr.Op)
		require.NotErrorIs(t, err, loki.ErrLockLost)
		require.ErrorContains(t, err, `the release of the lock "job" was not confirmed`)
		require.ErrorContains(t, err, "expires by itself in 59.5s at most")
	})
}

// The lease lives by the secondary. A late answer of the primary brings its release about, which would free the key for a
// holder that replaces our record before our own release has found it.
func TestRelease_ThePrimaryIsNotReleasedBeforeTheSecondary(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				a, b := r.locker(mode), r.locker(mode)
				require.NoError(t, a.ExecuteWithinLock(t.Context(), 9*time.Second, func(context.Context) error {
					time.Sleep(time.Second)
					r.primary.nextCall(lokitest.OpExtend, lokitest.Fault{After: late(1020 * time.Millisecond)}) // the renewal at 3 s
					time.Sleep(3 * time.Second)
					r.secondary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 200 * time.Millisecond}})
					go func() {
						_ = b.ExecuteWithinLock(t.Context(), 9*time.Second, func(context.Context) error { time.Sleep(time.Second); return nil }, loki.WithWait(time.Minute))
					}()
					return nil
				}))
				time.Sleep(time.Minute)
			})
		})
	}
}

// A worker of the background makes the first attempt where it knows the lease already: its failure is reported as any other.
func TestRelease_ReportsAFailureAfterARepeatedRenewal(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ls, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Second, IgnoreCtx: true}}) // the second attempt goes well
		time.Sleep(15 * time.Second)
		require.NoError(t, ls.Context().Err())
		r.primary.fail(errDown, lokitest.OpRelease)
		err = ls.Release(t.Context())
		require.NotEmpty(t, r.primary.mem.HeldKeys())
		require.Error(t, err, "the store holds the lock, and the release failed")
		require.ErrorContains(t, err, "not confirmed")
	})
}

func TestRelease_ReportsAFailureOfTheSecondaryThatTheLeaseReliesOn(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		ls, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		r.primary.fail(errDown)
		time.Sleep(15 * time.Second)
		require.NoError(t, ls.Context().Err())
		r.secondary.fail(errDown, lokitest.OpRelease)
		err = ls.Release(t.Context())
		require.NotEmpty(t, r.secondary.mem.HeldKeys())
		require.Error(t, err, "the store that the lease relies on holds the lock, and the release failed")
	})
}

func TestRelease_ThatHangsIsNotQueued(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		ls, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		r.primary.fail(errDown)
		time.Sleep(15 * time.Second)
		require.NoError(t, ls.Context().Err())
		r.secondary.hang(lokitest.OpRelease)
		err = ls.Release(t.Context())
		require.Error(t, err)
		require.NotContains(t, err.Error(), "an earlier request for the same key has not been answered", "there was none: it is the release itself")
	})
}

// The key is free in this process before the release is sent: the next caller's lock may be quicker, and names the token of
// the one before.
func TestRelease_FindsNothingWhereTheNextLockHasReplacedTheRecord(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(mode)
				first, second := make(chan error, 1), make(chan error, 1)
				// One slow answer: a second attempt is sent, and the first one returns later.
				r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 200 * time.Millisecond}})
				r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Millisecond}}) // on its way
				go func() {
					first <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
						if name == "async" {
							r.secondary.hang(lokitest.OpLock)
						}
						time.Sleep(5 * time.Second)
						return ctx.Err()
					})
				}()
				time.Sleep(time.Second)
				go func() {
					second <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil }, loki.WithWait(time.Minute))
				}()
				require.NoError(t, <-first, "it held the lock until fn returned")
				require.NoError(t, <-second)
				require.Empty(t, r.events(loki.KindLost))
			})
		})
	}
}

func TestRelease_RenewalFindsNothingWhereTheNextLockHasReplacedTheRecord(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		first, second := make(chan error, 1), make(chan error, 1)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 200 * time.Millisecond}})
		r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{For: 50 * time.Millisecond}}) // on its way when fn returns
		go func() {
			first <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
				time.Sleep(9900 * time.Millisecond)
				return ctx.Err()
			})
		}()
		time.Sleep(time.Second)
		go func() {
			second <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil }, loki.WithWait(time.Minute))
		}()
		require.NoError(t, <-first, "it held the lock until fn returned")
		require.NoError(t, <-second)
		require.Empty(t, r.events(loki.KindLost))
	})
}
