package loki_test

// This file is what a wait must bear from a notifier, and from a store that says strange things.

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

func TestWait_LimitIsKeptWhileTheNotifierHangs(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.plant(t, foreign(time.Minute))
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Before: lokitest.Pause{For: longest}})
		start := time.Now()
		r.requireBusy(r.locker(alone), loki.WithWait(300*time.Millisecond))
		require.Equal(t, 300*time.Millisecond, time.Since(start))
	})
}

func TestWait_OneWhoGivesUpWhileItBeginsToListenSpoilsNothing(t *testing.T) {
	for name, opt := range map[string]loki.Option{"ctx": loki.WithWait(loki.UntilDone), "limit": loki.WithWait(50 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				r.primary.plant(t, foreign(time.Minute))
				r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
				ctx := t.Context()
				if name == "ctx" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
				}
				go func() { _ = l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), opt) }()
				synctest.Wait()
				late := r.grantedAfter(l, 30*time.Second, func() { _ = r.primary.mem.Release(t.Context(), foreign(0)) })
				require.Zero(t, late, "the next in line polls, although the notifier is well")
			})
		})
	}
}

func TestWait_AHolderForEverIsNotAskedAfterAllTheTime(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		c := foreign(math.MaxInt64)
		r.primary.plant(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.primary.faults.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
			if len(r.primary.Calls()) > 1000 {
				cancel() // or the bubble's time would stand still for ever
			}
			return lokitest.Fault{}
		})
		_ = r.locker(alone).ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		require.Less(t, len(r.primary.Calls()), 100)
		require.NoError(t, r.primary.mem.Release(t.Context(), c))
	})
}
