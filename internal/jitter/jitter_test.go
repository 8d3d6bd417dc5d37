package jitter_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/jitter"
)

func TestUpTo_StaysInBounds(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 1000 {
		seen[jitter.UpTo(3)] = true
	}
	require.Equal(t, map[time.Duration]bool{0: true, 1: true, 2: true, 3: true}, seen)
	require.Zero(t, jitter.UpTo(0))
	require.Zero(t, jitter.UpTo(-time.Second), "a pause that is over already")
}

func TestAround_IsWithinAnEighth(t *testing.T) {
	for range 1000 {
		d := jitter.Around(800)
		require.GreaterOrEqual(t, d, time.Duration(700))
		require.LessOrEqual(t, d, time.Duration(900))
	}
	require.Zero(t, jitter.Around(0))
}

func TestReplay_RepeatsASeedAndNotAnother(t *testing.T) {
	draw := func(seed uint64) (all []time.Duration) {
		synctest.Test(t, func(*testing.T) { // where every test begins at one and the same time
			defer jitter.Replay(seed)()
			for range 10 {
				all = append(all, jitter.UpTo(time.Hour), jitter.UpTo(time.Minute))
				time.Sleep(time.Millisecond)
			}
		})
		return all
	}
	first := draw(1)
	require.Equal(t, first, draw(1))
	require.NotEqual(t, first, draw(2))
	require.NotEqual(t, first[0], first[2], "it goes with the time")
	require.Greater(t, len(slices.Compact([]time.Duration{jitter.UpTo(time.Hour), jitter.UpTo(time.Hour), jitter.UpTo(time.Hour)})), 1, "the source is given back")
}
