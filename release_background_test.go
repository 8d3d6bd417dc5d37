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

// slowRelease has every release take so long.
func (r *rig) slowRelease(takes time.Duration) {
	for _, s := range []*testStore{r.primary, r.secondary} {
		s.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: takes}})
	}
}

const releaseTakes = 100 * time.Millisecond

func TestBackgroundRelease_IsNotWaitedFor(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, other := r.locker(change), r.locker(change)
				r.slowRelease(releaseTakes)
				start := time.Now()
				r.requireRan(l, loki.WithBackgroundRelease())
				ls, err := l.Acquire(t.Context(), 30*time.Second, loki.WithResource("another"), loki.WithBackgroundRelease())
				require.NoError(t, err)
				require.NoError(t, ls.Release(t.Context()))
				require.Zero(t, time.Since(start))
				r.requireBusy(other)
				out := r.requireRan(l) // waits for the release, and is not busy
				require.GreaterOrEqual(t, out.Waited, releaseTakes)
				r.requireRan(l, loki.WithBackgroundRelease())
				out = r.requireRan(l, loki.WithWait(time.Second))
				require.GreaterOrEqual(t, out.Waited, releaseTakes)
			})
		})
	}
}

func TestBackgroundRelease_ThatFailsIsAnEvent(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.nextCall(lokitest.OpRelease, lokitest.Fault{Err: errDown, Before: lokitest.Pause{For: 200 * time.Millisecond}})
		ls, err := l.Acquire(t.Context(), 30*time.Second, loki.WithBackgroundRelease())
		require.NoError(t, err)
		require.NoError(t, ls.Release(t.Context()))
		require.Empty(t, r.events(loki.KindReleaseFailed))
		r.requireRan(l)
		require.Len(t, r.events(loki.KindReleaseFailed), 1)
	})
}

func TestBackgroundRelease_CloseWaitsForIt(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.slowRelease(releaseTakes)
		start := time.Now()
		r.requireRan(l, loki.WithBackgroundRelease())
		require.NoError(t, l.Close(t.Context()))
		require.GreaterOrEqual(t, time.Since(start), releaseTakes)
		r.requireEmpty()
	})
}

func TestBackgroundRelease_KeepsAMinimumHold(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.requireRan(l, loki.WithBackgroundRelease(), loki.WithMinHold(time.Minute))
		r.requireBusy(l)
		r.requireBusy(r.locker(alone))
		time.Sleep(time.Minute + time.Millisecond)
		r.requireRan(l)
	})
}

// What waits for the release ends with its context, and with the Locker.
func TestBackgroundRelease_WhatWaitsForItHasAnEnd(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.slowRelease(releaseTakes)
		r.requireRan(l, loki.WithBackgroundRelease())
		ctx, cancel := context.WithTimeout(t.Context(), releaseTakes/2)
		defer cancel()
		err := l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, loki.ErrUnavailable)

		var wg sync.WaitGroup
		wg.Go(func() {
			require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t)), loki.ErrClosed)
		})
		synctest.Wait()
		require.NoError(t, l.Close(t.Context()))
		wg.Wait()
	})
}

func TestBackgroundRelease_OfALostLockIsReported(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		_ = l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			r.primary.lose(t, r.primary.lastToken())
			return nil
		}, loki.WithBackgroundRelease())
		require.Len(t, r.events(loki.KindLost), 1)
		r.requireRan(l)
	})
}
