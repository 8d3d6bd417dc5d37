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

func TestBreaker_ADeadPrimaryMakesOnlyTheFirstCallSlow(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.hang()
		require.Equal(t, loki.DefaultPrimaryTimeout, r.requireRan(l).Waited)
		start := time.Now()
		for time.Since(start) < time.Minute {
			require.Zero(t, r.requireRan(l).Waited, "a caller pays for a probe of the primary")
			time.Sleep(10 * time.Millisecond)
		}
		asked, probes := 0, 0
		for _, call := range r.primary.firstAttempts(lokitest.OpLock) {
			if strings.Contains(call.Claim.Key, loki.ProbeSuffix) {
				probes++
			} else {
				asked++
			}
		}
		require.Equal(t, 1, asked)
		require.Greater(t, probes, 15, "it is probed less often than the longest pause says")

		require.Empty(t, r.events(loki.KindUp))
		r.primaryIsBack()
		require.Equal(t, loki.Primary, r.requireRan(l).Store)
		back := r.events(loki.KindUp)
		require.Len(t, back, 1, "people who read of an outage want to read of its end")
		require.Equal(t, loki.Primary, back[0].Store)
		require.GreaterOrEqual(t, back[0].Took, time.Minute)
	})
}

func TestBreaker_LooksAreOnTheirWayWithoutCallers(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		r.requireRan(l)
		time.Sleep(time.Hour)
		r.primaryIsBack()
		require.Equal(t, loki.Primary, r.requireRan(l).Store, "the first call after an outage that is long over")
	})
}

func TestBreaker_OneShardDoesNotOpenItForAll(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
			if strings.HasPrefix(c.Key, "job/lost") {
				return lokitest.Fault{Err: errDown}
			}
			return lokitest.Fault{}
		})
		for i := range 20 {
			require.Equal(t, loki.Secondary, r.requireRan(l, loki.WithResource(fmt.Sprint("lost", i))).Store)
			require.Equal(t, loki.Primary, r.requireRan(l, loki.WithResource(fmt.Sprint("fine", i))).Store)
		}
		// Even if several keys of the lost shard fail in a row, a key of another shard is soon asked again.
		for i := range 5 {
			r.requireRan(l, loki.WithResource(fmt.Sprint("lost", 20+i)))
		}
		r.requireRan(l, loki.WithResource("fine"))
		time.Sleep(2 * loki.BreakerMaxPause)
		require.Equal(t, loki.Primary, r.requireRan(l, loki.WithResource("fine")).Store)
	})
}

func TestBreaker_SeveralKeysOpenItForAll(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.hang()
		for i := range 20 {
			out := r.requireRan(l, loki.WithResource(fmt.Sprint(i)))
			if i < 3 {
				require.Equal(t, loki.DefaultPrimaryTimeout, out.Waited)
			} else {
				require.Zero(t, out.Waited)
			}
		}
		r.primaryIsBack()
		require.Equal(t, loki.Primary, r.requireRan(l, loki.WithResource("7")).Store)
	})
}

func TestBreaker_AnswerToARenewalClosesIt(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Err: errDown})
			r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Err: errDown})
			for i := range 3 {
				require.Equal(t, loki.Secondary, r.requireRan(l, loki.WithResource(fmt.Sprint(i))).Store)
			}
			r.primary.faults.Clear(lokitest.OpLock)
			time.Sleep(1500 * time.Millisecond)
			require.Equal(t, loki.Primary, r.requireRan(l, loki.WithResource("3")).Store)
			return ctx.Err()
		}))
	})
}

func TestBreaker_NoneWithoutASecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.fail(errDown)
		for range 10 {
			require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		}
		require.Len(t, r.primary.Calls(lokitest.OpLock), 10)
		r.primary.heal()
		r.requireRan(l)
	})
}

func TestBreaker_AMistakeDoesNotOpenIt(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errFn})
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), errFn)
		require.Equal(t, loki.Primary, r.requireRan(l).Store)
	})
}
