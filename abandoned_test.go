package loki_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// Two attempts of a call whose ctx the handler ignores are counted when their time is up, also if the other one was answered.
func TestAbandonedAttemptsOfAnsweredCallsAreBounded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.deadConnection(lokitest.Pause{For: time.Hour, IgnoreCtx: true}, lokitest.OpLock)
		var err error
		n := 0
		for ; err == nil && n < 2*loki.MaxAbandonedCalls; n++ {
			err = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithResource(fmt.Sprint(n)))
		}
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.InDelta(t, loki.MaxAbandonedCalls, n, 5)
		time.Sleep(2 * time.Hour)
	})
}

// One shard of a cluster swallows everything, and the client tries on for long after its ctx has ended.
func TestProbesOfADeadShardLeaveTheOthersTheirCalls(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
			if strings.Contains(c.Key, "dead") {
				return lokitest.Fault{Before: late(16 * time.Second), Err: errDown}
			}
			return lokitest.Fault{}
		})
		for i := range 60 {
			require.Error(t, r.try(l, loki.WithResource(fmt.Sprint("dead", i))))
			time.Sleep(4 * time.Second)
			require.NoError(t, r.try(l, loki.WithResource("fine")))
		}
		for range 60 {
			require.NoError(t, r.try(l, loki.WithResource("fine")))
			time.Sleep(time.Second)
		}
		r.requireReported("ERROR down primary")
		r.primaryIsBack()
		time.Sleep(time.Minute)
		r.requireReported("ERROR down primary", "INFO up primary")
	})
}
