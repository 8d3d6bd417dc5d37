package retry_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/retry"
)

func TestUpTo_StaysInBounds(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 1000 {
		seen[retry.UpTo(3)] = true
	}
	require.Equal(t, map[time.Duration]bool{0: true, 1: true, 2: true, 3: true}, seen)
	require.Zero(t, retry.UpTo(0))
	require.Zero(t, retry.UpTo(-time.Second), "a pause that is over already")
	require.GreaterOrEqual(t, retry.UpTo(math.MaxInt64), time.Duration(0))
}

func TestAround_IsWithinAnEighth(t *testing.T) {
	for range 1000 {
		d := retry.Around(800)
		require.GreaterOrEqual(t, d, time.Duration(700))
		require.LessOrEqual(t, d, time.Duration(900))
	}
	require.Zero(t, retry.Around(0))
}

func TestReplay_RepeatsASeedAndNotAnother(t *testing.T) {
	draw := func(seed uint64) (all []time.Duration) {
		synctest.Test(t, func(*testing.T) { // where every test begins at one and the same time
			defer retry.Replay(seed)()
			for range 10 {
				all = append(all, retry.UpTo(time.Hour), retry.UpTo(time.Minute))
				time.Sleep(time.Millisecond)
			}
		})
		return all
	}
	first := draw(1)
	require.Equal(t, first, draw(1))
	require.NotEqual(t, first, draw(2))
	require.NotEqual(t, first[0], first[2], "it goes with the time")
	require.Greater(t, len(slices.Compact([]time.Duration{retry.UpTo(time.Hour), retry.UpTo(time.Hour), retry.UpTo(time.Hour)})), 1, "the source is given back")
}

func TestSleep_ReportsWhatEndedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.True(t, retry.Sleep(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(start))
		require.True(t, retry.Sleep(t.Context(), 0))
		require.True(t, retry.Sleep(t.Context(), -time.Minute))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		require.False(t, retry.Sleep(ctx, time.Minute))
		require.Equal(t, time.Second, time.Since(start))
		for range 100 {
			require.False(t, retry.Sleep(ctx, 0), "an ended context is noticed without a pause, too")
		}
	})
}

func TestCeil_RoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		-1: 0, 0: 0, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2, math.MaxInt64: 9223372037,
	} {
		require.Equal(t, want, retry.Ceil(d, time.Second), d)
	}
	for d, want := range map[time.Duration]time.Duration{
		-time.Hour: 0, 0: 0, 1: time.Millisecond, time.Millisecond: time.Millisecond, time.Millisecond + 1: 2 * time.Millisecond,
	} {
		require.Equal(t, want, retry.CeilMillisecond(d), d)
	}
	require.Equal(t, time.Duration(math.MaxInt64).Truncate(time.Millisecond), retry.CeilMillisecond(math.MaxInt64), "no overflow")
}
