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

// One refused command at the writing of the record: the occurrence runs again at once.
func TestFixed_OneFailedRecordWrite(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(alone), r.locker(alone)
		var n, runs atomic.Int32
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if op == lokitest.OpLock && strings.Contains(c.Key, "@") && n.Add(1) == 2 { // The look, 2: the record
				return lokitest.Fault{Err: errDown}
			}
			return lokitest.Fault{}
		})
		fn := func(context.Context) error { runs.Add(1); return nil }
		require.NoError(t, a.ExecuteWithinLock(t.Context(), 10*time.Second, fn, loki.WithOccurrence("tick", time.Hour)))
		err := b.ExecuteWithinLock(t.Context(), 10*time.Second, fn, loki.WithOccurrence("tick", time.Hour))
		t.Log(err)
		require.Equal(t, int32(1), runs.Load())
	})
}

// Sync mode, the primary has the record, the secondary refused one command; another instance is cut off from the primary.
func TestFixed_SyncRecordInOneStore(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(inSync), r.locker(inSync)
		var n, runs atomic.Int32
		r.secondary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if op == lokitest.OpLock && strings.Contains(c.Key, "@") && n.Add(1) == 2 {
				return lokitest.Fault{Err: errDown}
			}
			return lokitest.Fault{}
		})
		fn := func(context.Context) error { runs.Add(1); return nil }
		require.NoError(t, a.ExecuteWithinLock(t.Context(), 10*time.Second, fn, loki.WithOccurrence("tick", time.Hour)))
		r.primary.fail(errDown)
		err := b.ExecuteWithinLock(t.Context(), 10*time.Second, fn, loki.WithOccurrence("tick", time.Hour))
		t.Log(err)
		require.Equal(t, int32(1), runs.Load())
	})
}

// Async with a hung secondary and a caller's deadline.
func TestFixed_OccurrenceHungSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.secondary.hang()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ran := false
		err := a.ExecuteWithinLock(ctx, 30*time.Second, func(context.Context) error { ran = true; return nil }, loki.WithOccurrence("tick", time.Hour))
		t.Log(err)
		require.True(t, ran)
	})
}

// Two abandoned mirror writes, the first lands last.
func TestFixed_EarlierAbandonedWriteLandsLast(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		late := func(d time.Duration) lokitest.Fault {
			return lokitest.Fault{Before: lokitest.Pause{For: d, IgnoreCtx: true}}
		}
		r.secondary.faults.Next(lokitest.OpLock, late(60*time.Second), late(5*time.Second))
		_ = a.ExecuteWithinLock(t.Context(), time.Second, func(ctx context.Context) error { time.Sleep(1500 * time.Millisecond); return nil })
		require.NoError(t, a.Close(t.Context()))
		time.Sleep(10 * time.Second)
		var seen time.Duration
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if len(r.secondary.mem.HeldKeys()) > 0 {
				seen += 100 * time.Millisecond
			}
		}
		require.Zero(t, seen, "an orphan row")
	})
}

// Events come in order.
func TestFixed_EventOrder(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		_ = a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { time.Sleep(time.Second); return nil }, loki.WithOccurrence("x", time.Minute))
		synctest.Wait()
		for _, e := range r.log.events {
			t.Log(e.Kind, e.Store, e.Op, e.Key, e.Err)
		}
	})
}

// A waiter whose first look at the notifier was interrupted makes everyone poll
func TestFixed_InterruptedListenMakesAllPoll(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		other, l := r.locker(alone), r.locker(alone)
		hold, err := other.Acquire(t.Context(), time.Hour)
		require.NoError(t, err)
		r.primary.faults.Next(lokitest.OpNotify, lokitest.Fault{Err: errDown})
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			go func() {
				_ = l.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error { return nil }, loki.WithWait(loki.UntilDone))
			}()
		}
		time.Sleep(time.Second)
		r.primary.Reset()
		time.Sleep(10 * time.Minute)
		n := len(r.primary.Calls(lokitest.OpLock))
		cancel()
		require.NoError(t, hold.Release(t.Context()))
		require.Less(t, n, 600, "asks in ten minutes")
	})
}

// A line of waiters that grows: the first in it asked once more for each that joined.
func TestFixed_WhoJoinsTheLineMakesNobodyAsk(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		h := hold(t, r.locker(alone), time.Hour)
		l := r.locker(alone)
		line := []*holding{begin(t.Context(), t, l, time.Minute, loki.WithWait(time.Second))}
		synctest.Wait()
		asked := len(r.primary.Calls(lokitest.OpLock))
		for range 50 {
			line = append(line, begin(t.Context(), t, l, time.Minute, loki.WithWait(time.Second)))
			synctest.Wait()
		}
		require.Len(t, r.primary.Calls(lokitest.OpLock), asked)
		for _, w := range line {
			require.ErrorIs(t, w.wait(), loki.ErrBusy)
		}
		require.NoError(t, h.end())
	})
}
