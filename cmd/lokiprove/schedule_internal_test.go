package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

func long(mode string, lossy bool, seed uint64) settings {
	return settings{length: 10 * time.Minute, workers: 4, mode: mode, seed: seed, expiry: time.Second, rate: 2, lossy: lossy}
}

func TestTheSeedChoosesTheFaults(t *testing.T) {
	one, two := long(referee.Async, true, 1), long(referee.Async, true, 2)
	first := schedule(one)
	require.Equal(t, first, schedule(one))
	require.NotEqual(t, first, schedule(two))
}

func TestAScheduleCanBeCarriedOut(t *testing.T) {
	for seed := range uint64(20) {
		s := long(referee.Async, true, seed)
		faults := schedule(s)
		seen := map[string]bool{}
		for i, f := range faults {
			seen[f.kind] = true
			require.Equal(t, i+1, f.id)
			require.LessOrEqual(t, f.at, f.end)
			require.LessOrEqual(t, f.end, s.length-tail*s.expiry, "a fault in the quiet end")
			require.LessOrEqual(t, f.end-f.at, s.maxFault())
			for _, other := range faults[:i] {
				if other.end >= f.at {
					require.False(t, f.clashes(other), "%v while there is %v", f, other)
				}
			}
		}
		for _, k := range kinds {
			require.True(t, seen[k.kind], "no %s in ten minutes", k.kind)
		}
		require.Greater(t, len(faults), 600, "ten minutes of two a second, less the calms")
	}
}

func TestFaultsThatAreLeftOut(t *testing.T) {
	for _, f := range schedule(long(referee.Alone, false, 1)) {
		require.NotEqual(t, referee.Secondary, f.store)
		require.NotEqual(t, referee.Restart, f.kind)
		require.NotEqual(t, referee.Promote, f.kind)
	}
	s := long(referee.Async, true, 1)
	s.rate = 0
	require.Empty(t, schedule(s))
}
