package loki_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An impatient waiter ends the waits of patient ones, though the store is healthy.
func TestFixed_ImpatientWaiterPoisonsOthers(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		other, l := r.locker(alone), r.locker(alone)
		hold, err := other.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 30 * time.Millisecond}})
		var wg sync.WaitGroup
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(10*time.Millisecond))
			t.Log("impatient:", err)
		})
		synctest.Wait()
		ran := false
		start := time.Now()
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { ran = true; return nil }, loki.WithWait(10*time.Second))
			t.Log("patient after", time.Since(start), err)
		})
		time.Sleep(time.Second)
		require.NoError(t, hold.Release(t.Context()))
		wg.Wait()
		require.True(t, ran)
	})
}

// The same with the impatient one second in line.
func TestFixed_ImpatientSecondInLine(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		other, l := r.locker(alone), r.locker(alone)
		hold, err := other.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 30 * time.Millisecond}})
		var wg sync.WaitGroup
		ran := false
		start := time.Now()
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { ran = true; return nil }, loki.WithWait(10*time.Second))
			t.Log("patient after", time.Since(start), err)
		})
		synctest.Wait()
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(10*time.Millisecond))
			t.Log("impatient:", err)
		})
		time.Sleep(time.Second)
		require.NoError(t, hold.Release(t.Context()))
		wg.Wait()
		require.True(t, ran)
	})
}

// The same with a tiny expiry.
func TestFixed_TinyExpiryPoisons(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		other, l := r.locker(alone), r.locker(alone)
		hold, err := other.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = l.ExecuteWithinLock(t.Context(), loki.MinExpiry, mustNotRun(t), loki.WithWait(10*time.Second))
		})
		synctest.Wait()
		ran := false
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { ran = true; return nil }, loki.WithWait(10*time.Second))
			t.Log(err)
		})
		time.Sleep(time.Second)
		require.NoError(t, hold.Release(t.Context()))
		wg.Wait()
		require.True(t, ran)
	})
}

// A lease on a key whose mirror write waits for a slot is lost in an outage of the primary though the secondary answers.
func TestFixed_LaneWaitsForSlot(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.secondary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if strings.Contains(c.Key, "slow") {
				return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
			}
			return lokitest.Fault{}
		})
		var leases []*loki.Lease
		for i := range 40 {
			ls, err := a.Acquire(t.Context(), time.Minute, loki.WithResource(fmt.Sprint("slow", i)))
			require.NoError(t, err)
			leases = append(leases, ls)
		}
		synctest.Wait()
		err := a.ExecuteWithinLock(t.Context(), 2*time.Second, func(ctx context.Context) error {
			r.primary.fail(errDown)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Second):
			}
			return nil
		}, loki.WithResource("quick"))
		t.Log(err)
		r.primary.heal()
		for _, ls := range leases {
			_ = ls.Release(t.Context())
		}
		require.NoError(t, err)
	})
}

// An observer that ends its goroutine (require in a test does) silences everything and hangs Close.
func TestFixed_ObserverGoexit(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		var told atomic.Int32
		a := r.locker(alone, func(c *loki.Config) {
			c.Observer = func(context.Context, loki.Event) {
				if told.Add(1) == 1 {
					runtime.Goexit()
				}
			}
		})
		r.requireRan(a)
		synctest.Wait()
		r.requireRan(a)
		synctest.Wait()
		t.Log("events told:", told.Load())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := a.Close(ctx)
		r.lockers = nil
		require.NoError(t, err)
	})
}

// Close has no bound of its own when a handler never returns.
func TestFixed_CloseWaitsForAbandonedCall(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(alone)
		never := make(chan struct{})
		r.primary.nextCall(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{Until: never, IgnoreCtx: true}})
		err := a.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = a.Close(ctx)
		close(never)
		require.NoError(t, err)
	})
}

// Close with values of the ctx of a closure whose lease was lost.
func TestFixed_CloseInLostClosure(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(alone)
		var closeErr error
		start := time.Now()
		_ = a.ExecuteWithinLock(t.Context(), time.Second, func(ctx context.Context) error {
			r.primary.fail(errDown, lokitest.OpExtend)
			<-ctx.Done()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			defer cancel()
			closeErr = a.Close(ctx)
			return nil
		})
		t.Log(time.Since(start), closeErr)
		require.Less(t, time.Since(start), 10*time.Second)
	})
}

// The wait limit does not bound Notify.
func TestFixed_WaitLimitNotify(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(alone), r.locker(alone)
		hold, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.hang(lokitest.OpNotify)
		start := time.Now()
		r.requireBusy(b, loki.WithWait(50*time.Millisecond))
		took := time.Since(start)
		require.NoError(t, hold.Release(t.Context()))
		require.Less(t, took, 60*time.Millisecond)
	})
}

// Async, in doubt, secondary hangs: a caller with a deadline never runs though the primary grants.
func TestFixed_DoubtEatsDeadline(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.primary.fail(errDown)
		r.requireRan(a)
		r.primaryIsBack()
		r.secondary.hang()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			start := time.Now()
			ran := false
			err := a.ExecuteWithinLock(ctx, 30*time.Second, func(context.Context) error { ran = true; return nil })
			cancel()
			t.Log(time.Since(start), err)
			if !ran {
				t.Error("did not run")
			}
		}
	})
}

// The breaker is open, the secondary is down, the primary is back.
func TestFixed_BreakerWithoutAlternative(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.primary.fail(errDown)
		r.secondary.fail(errDown)
		for range 60 {
			_ = a.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t))
			time.Sleep(100 * time.Millisecond)
		}
		r.primary.heal()
		healed := time.Now()
		for {
			err := a.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error { return nil })
			if err == nil {
				break
			}
			require.ErrorIs(t, err, loki.ErrUnavailable)
			time.Sleep(20 * time.Millisecond)
		}
		took := time.Since(healed)
		require.Less(t, took, 500*time.Millisecond, "the primary was healthy and not asked for so long")
	})
}

// A wait that ends at its limit looks like an outage of a healthy primary.
func TestFixed_WaitLimitLooksLikeOutage(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		hold, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Err: errors.ErrUnsupported})
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}})
		for i := range 40 {
			r.requireBusy(b, loki.WithWait(time.Duration(100+7*i)*time.Millisecond))
		}
		fell := len(r.events(loki.KindFellBack))
		require.NoError(t, hold.Release(t.Context()))
		require.Zero(t, fell, "fell_back events (warn) of 40 busy waits")
	})
}

// Whatever the cause, the error of Close matches what its ctx ended with.

func TestFixed_CloseErrorMatchesCtx(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(alone)
		done := make(chan struct{})
		go func() {
			_ = a.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error { <-done; return nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("deploy"))
		err := a.Close(ctx)
		close(done)
		require.ErrorIs(t, err, context.Canceled)
	})
}

type leftForEver struct{ calls atomic.Int64 }

func (h *leftForEver) Lock(context.Context, loki.Claim) (bool, error) {
	h.calls.Add(1)
	return false, nil
}
func (h *leftForEver) Release(context.Context, loki.Claim) error { return nil }
func (h *leftForEver) Grant(context.Context, loki.Claim) (loki.Grant, error) {
	h.calls.Add(1)
	return loki.Grant{HeldBy: loki.Holder{ID: "x", Left: math.MaxInt64}}, nil
}
func (h *leftForEver) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	return make(chan struct{}), nil
}

// A Left near the largest number there is must not make a waiter ask without a pause.
func TestFixed_LeftOverflow(t *testing.T) {
	h := &leftForEver{}
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: h})
	require.NoError(t, err)
	_ = l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(200*time.Millisecond))
	require.Less(t, h.calls.Load(), int64(50))
}

// Many keys of one shard fail, then everything.
func TestFixed_BreakerFullNeverOpensForAll(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if strings.Contains(c.Key, "shard1-") {
				return lokitest.Fault{Err: errDown}
			}
			return lokitest.Fault{}
		})
		one := func(res string) {
			_ = a.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error { return nil }, loki.WithResource(res))
		}
		for i := range 1030 {
			one(fmt.Sprint("shard1-", i))
			one("fine") // an answer in between
		}
		r.primary.hang()
		start := time.Now()
		for i := range 20 {
			one(fmt.Sprint("new-", i))
		}
		took := time.Since(start)
		r.primary.heal()
		require.Less(t, took, 5*time.Second)
	})
}

// Notify calls that hang make the store unavailable for locks.
func TestFixed_HangingNotifyPoisonsLocks(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(alone), r.locker(alone)
		for i := range 300 {
			_, err := a.Acquire(t.Context(), time.Minute, loki.WithResource(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		never := make(chan struct{})
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Before: lokitest.Pause{Until: never, IgnoreCtx: true}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				_ = b.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error { return nil }, loki.WithResource(fmt.Sprint(i)), loki.WithWait(time.Hour))
			})
		}
		time.Sleep(2 * time.Second)
		err := b.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithResource("free"))
		cancel()
		close(never)
		wg.Wait()
		require.NoError(t, err)
	})
}

// A call that Close has overtaken has not run.
func TestFixed_OutcomeOfAcquireClosed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(alone)
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 50 * time.Millisecond}})
		go func() { time.Sleep(10 * time.Millisecond); _ = a.Close(t.Context()) }()
		var out loki.Outcome
		_, err := a.Acquire(t.Context(), time.Second, loki.WithOutcome(&out))
		require.ErrorIs(t, err, loki.ErrClosed)
		require.False(t, out.Ran, "%+v", out)
	})
}

// Sync mode: secondary refuses, primary's release hangs, ctx ends.
func TestFixed_SyncGiveBackIgnoresCtx(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker(inSync)
		r.secondary.fail(errDown, lokitest.OpLock)
		r.primary.hang(lokitest.OpRelease)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := a.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
		t.Log(time.Since(start), err)
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
}

// The wait variant: neither ctx's error nor purely busy.
func TestFixed_SyncWaitGiveBackClass(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(inSync), r.locker(inSync)
		hold, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		go func() {
			time.Sleep(100 * time.Millisecond)
			assert.NoError(t, hold.Release(t.Context()))
		}()
		time.AfterFunc(50*time.Millisecond, func() {
			r.secondary.fail(errDown, lokitest.OpLock)
			r.primary.faults.Decide(nil)
		})
		time.AfterFunc(101*time.Millisecond, func() {})
		var n atomic.Int32
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault { return lokitest.Fault{} })
		time.AfterFunc(60*time.Millisecond, func() {
			r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
				if op == lokitest.OpRelease && n.Add(1) > 1 {
					return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
				}
				return lokitest.Fault{}
			})
		})
		start := time.Now()
		err = b.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		t.Log(time.Since(start), err, "busy", errors.Is(err, loki.ErrBusy), "unavailable", errors.Is(err, loki.ErrUnavailable), "ctx", errors.Is(err, context.DeadlineExceeded))
		if errors.Is(err, loki.ErrBusy) && errors.Is(err, loki.ErrUnavailable) {
			t.Error("matches both")
		}
	})
}
