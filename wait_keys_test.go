package loki_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

func TestKeyTable_BusyHereCostsNoRoundTrip(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		err = r.requireBusy(l)
		require.ErrorContains(t, err, r.primary.held(t, "job").ID)
		require.Len(t, r.primary.Calls(), 1)

		r.requireRan(l, loki.WithResource("another"))
		require.NoError(t, ls.Release(t.Context()))
		r.requireRan(l)
	})
}

func TestKeyTable_ALostLeaseFreesTheKeyAtOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		for range 50 {
			err := l.ExecuteWithinLock(t.Context(), 300*time.Millisecond, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			}, loki.WithoutRenewal())
			require.ErrorIs(t, err, loki.ErrExpired)
			r.requireRan(l)
		}
	})
}

func TestWait_InOrderAndOnlyTheFirstAsks(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.plant(t, foreign(10*time.Second))
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
					return nil
				}, loki.WithWait(loki.UntilDone)))
			})
			synctest.Wait()
		}
		time.Sleep(9 * time.Second)
		require.Less(t, len(r.primary.Calls(lokitest.OpLock)), 60, "somebody else than the first in line asks")
		wg.Wait()
		for i := range order {
			require.Equal(t, i, order[i])
		}
	})
}

func TestWait_LimitIsKept(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		ls, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		for _, l := range []*loki.Locker{a, b} {
			start := time.Now()
			r.requireBusy(l, loki.WithWait(300*time.Millisecond))
			require.Equal(t, 300*time.Millisecond, time.Since(start))
			start = time.Now()
			r.requireBusy(l, loki.WithWait(0))
			r.requireBusy(l, loki.WithWait(-time.Second))
			require.Zero(t, time.Since(start))
		}
		time.AfterFunc(time.Second, func() { _ = ls.Release(t.Context()) })
		out := r.requireRan(b, loki.WithWait(time.Minute))
		require.InDelta(t, time.Second, out.Waited, float64(400*time.Millisecond))
	})
}

// The expiry has nothing to do with how long a waiter waits.
func TestWait_LongerThanTheExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		go func() {
			_ = a.ExecuteWithinLock(t.Context(), 300*time.Millisecond, func(context.Context) error { time.Sleep(800 * time.Millisecond); return nil })
		}()
		synctest.Wait()
		err := b.ExecuteWithinLock(t.Context(), 300*time.Millisecond, func(context.Context) error { return nil }, loki.WithWait(2*time.Second))
		require.NoError(t, err)
	})
}

func TestWait_AnOutageEndsEveryWait(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.plant(t, foreign(time.Hour))
		var wg sync.WaitGroup
		var unavailable atomic.Int32
		for range 10 {
			wg.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
				require.ErrorIs(t, err, loki.ErrUnavailable)
				unavailable.Add(1)
			})
		}
		time.Sleep(time.Second)
		require.Zero(t, unavailable.Load())
		r.primary.hang()
		time.Sleep(3 * time.Second) // the first in line looks again after two, and meets with one timeout
		require.EqualValues(t, 10, unavailable.Load(), "each of them waited for a timeout of its own")
		wg.Wait()
	})
}

func TestWait_CancelledAtOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		_, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		for _, l := range []*loki.Locker{a, b} {
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			time.AfterFunc(100*time.Millisecond, cancel)
			err = l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
			require.Equal(t, 100*time.Millisecond, time.Since(start))
			require.ErrorIs(t, err, loki.ErrBusy)
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

func TestNestedCallIsToldAtOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		start := time.Now()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
			for _, opt := range []loki.Option{loki.WithWait(0), loki.WithWait(loki.UntilDone)} {
				err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), opt)
				require.ErrorIs(t, err, loki.ErrBusy)
				require.ErrorContains(t, err, "nested")
				var busy *loki.BusyError
				require.ErrorAs(t, err, &busy)
				require.True(t, busy.Nested)
			}
			// Two levels down, through another key's closure.
			require.NoError(t, l.ExecuteWithinLock(ctx, time.Minute, func(ctx context.Context) error {
				require.ErrorContains(t, l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone)), "nested")
				return nil
			}, loki.WithResource("inner")))
			require.Zero(t, time.Since(start))

			// Without the context nobody can know: the limit decides.
			r.requireBusy(l, loki.WithWait(300*time.Millisecond))
			r.requireBusy(other, loki.WithWait(300*time.Millisecond))
			require.Equal(t, 600*time.Millisecond, time.Since(start))
			return ctx.Err()
		}))
		require.Len(t, r.primary.Calls(lokitest.OpRelease), 2)
	})
}

func TestOneAtATime(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		lockers := []*loki.Locker{r.locker(), r.locker(inSync), r.locker()}
		var running, ran atomic.Int32
		var wg sync.WaitGroup
		for g := range 30 {
			wg.Go(func() {
				for range 20 {
					err := lockers[g%3].ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error {
						require.EqualValues(t, 1, running.Add(1))
						time.Sleep(time.Millisecond)
						running.Add(-1)
						ran.Add(1)
						return nil
					}, loki.WithWait(time.Duration(g%2)*time.Minute))
					require.NoError(t, loki.IgnoreBusy(err))
				}
			})
		}
		wg.Wait()
		require.GreaterOrEqual(t, ran.Load(), int32(300), "waiting callers all run")
		r.requireEmpty()
	})
}

func TestManyKeysAtOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					time.Sleep(time.Second)
					return nil
				}, loki.WithResource(fmt.Sprint(i))))
			})
		}
		wg.Wait()
		r.requireEmpty()
	})
}
