package loki_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

func TestClose_WaitsForClosuresThatAreStillRenewed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		done := make(chan error, 1)
		go func() {
			done <- l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
				time.Sleep(time.Minute)
				return ctx.Err()
			})
		}()
		synctest.Wait()
		start := time.Now()

		short, cancel := context.WithTimeoutCause(t.Context(), time.Second, errFn)
		defer cancel()
		err := l.Close(short)
		require.ErrorIs(t, err, errFn)
		require.ErrorContains(t, err, "1 calls were still running")
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrClosed)

		require.NoError(t, l.Close(t.Context()))
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, <-done)
		require.Empty(t, r.primary.mem.HeldKeys())
		require.Empty(t, r.secondary.mem.HeldKeys())
		require.NoError(t, l.Close(t.Context()), "again")
	})
}

func TestClose_EndsWaitersAndLeases(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		}()
		synctest.Wait()
		require.NoError(t, l.Close(t.Context()))
		require.ErrorIs(t, <-done, loki.ErrClosed)
		require.ErrorIs(t, context.Cause(ls.Context()), loki.ErrClosed)
		require.NoError(t, ls.Release(t.Context()))
		require.Empty(t, r.primary.mem.HeldKeys())
		require.Empty(t, r.secondary.mem.HeldKeys())
		r.requireRan(other)
	})
}

func TestClose_InsideAClosureIsAnError(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
			require.ErrorContains(t, l.Close(ctx), "inside the closure")
			return other.Close(ctx)
		}))
		r.requireRan(l)
	})
}

func TestClose_WaitsForTheFirstAttemptOfEveryRelease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			synctest.Wait()
			r.secondary.nextCall(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: time.Second}})
			return nil
		}))
		start := time.Now()
		require.NoError(t, l.Close(t.Context()))
		require.Equal(t, time.Second, time.Since(start))
		require.Empty(t, r.secondary.mem.HeldKeys())
	})
}

func TestClose_MisuseIsASentence(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		require.ErrorContains(t, r.locker().Close(nil), "context is nil") //nolint:staticcheck // the mistake
		require.ErrorContains(t, (&loki.Locker{}).Close(t.Context()), "not made by Build or New")
	})
}

// A service that was asked to stop closes with the context that has ended: https://github.com/google/trillian/issues/3789
func TestClose_WaitsForReleasesWhateverTheContextSays(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(mode)
				ctx, cancel := context.WithCancel(t.Context())
				_, err := l.Acquire(ctx, time.Minute)
				require.NoError(t, err)
				started := make(chan struct{})
				go func() {
					_ = l.ExecuteWithinLock(ctx, time.Minute, func(ctx context.Context) error {
						close(started)
						<-ctx.Done()
						return nil
					}, loki.WithResource("closure"))
				}()
				<-started
				synctest.Wait()
				for _, s := range []*testStore{r.primary, r.secondary} {
					s.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
				}
				cancel()
				require.NoError(t, l.Close(ctx))
				require.Empty(t, r.primary.mem.HeldKeys(), "the process may exit now")
				require.Empty(t, r.secondary.mem.HeldKeys())
			})
		})
	}
}

func TestClose_GivesUpOnAClosureThatGoesOn(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			start := time.Now()
			err := l.Close(ctx)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "1 calls were still running")
			require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
			return nil
		}))
	})
}

// Calls of a handler that never return are waited for as long as their answers could matter.
func TestClose_EndsBesideCallsThatNeverReturn(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error {
			for _, op := range everyOp {
				r.primary.faults.Set(op, lokitest.Fault{Before: late(2 * time.Hour)})
			}
			time.Sleep(20 * time.Second)
			return nil
		}))
		start := time.Now()
		require.NoError(t, l.Close(t.Context()))
		require.LessOrEqual(t, time.Since(start), 31*time.Second)
	})
}

func TestClose_NothingStartsAfterIt(t *testing.T) {
	for name, opts := range map[string][]loki.Option{"a waiter": {loki.WithWait(loki.UntilDone)}, "a call": nil} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, other := r.locker(), r.locker()
				ls, err := other.Acquire(t.Context(), 30*time.Second)
				require.NoError(t, err)
				if opts == nil {
					require.NoError(t, ls.Release(t.Context()))
				}
				r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 400 * time.Millisecond}})
				done := make(chan error, 1)
				ran := false
				closing := make(chan struct{})
				go func() {
					done <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
						ran = true
						<-closing // it was closed before fn began, or this would not return
						time.Sleep(time.Hour)
						return nil
					}, opts...)
				}()
				if opts != nil {
					time.Sleep(450 * time.Millisecond) // it has been told busy, and asks again
					require.NoError(t, ls.Release(t.Context()))
				}
				time.Sleep(100 * time.Millisecond)
				close(closing)
				require.NoError(t, l.Close(t.Context()))
				err = <-done
				require.False(t, ran, "a closure started after Close was called")
				require.ErrorIs(t, err, loki.ErrClosed)
			})
		})
	}
}

// The grant arrives after Close, so nothing has run: the next instance must not wait for the end of the hold.
func TestClose_CallThatItOvertookKeepsNoMinimumHold(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, other := r.locker(mode), r.locker(mode)
				r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
				done := make(chan error, 1)
				go func() {
					done <- l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithMinHold(10*time.Minute))
				}()
				time.Sleep(50 * time.Millisecond)
				require.NoError(t, l.Close(t.Context()))
				require.ErrorIs(t, <-done, loki.ErrClosed)
				time.Sleep(time.Second)
				r.requireRan(other)
			})
		})
	}
}
