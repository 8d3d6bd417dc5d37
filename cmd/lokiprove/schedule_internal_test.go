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

// of is a long proof on a quorum.
func of(n int, s settings) settings {
	s.quorum = n
	return s
}

func TestAScheduleCanBeCarriedOut(t *testing.T) {
	for seed := range uint64(20) {
		s := of([]int{0, 3, 5, 7}[seed%4], long(referee.Async, true, seed))
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
			if s.possible(k) {
				require.True(t, seen[k.kind], "no %s in ten minutes", k.kind)
			}
		}
		require.Greater(t, len(faults), 600, "ten minutes of two a second, less the calms")
	}
}

// A quorum promises nothing once a majority of its servers is gone, or one has forgotten what it had promised.
func TestAScheduleLeavesTheQuorumItsMajority(t *testing.T) {
	for _, n := range []int{3, 5, 7} {
		most, calms := 0, 0
		for seed := range uint64(8) {
			s := of(n, long(referee.Alone, true, seed))
			s.length /= 4
			s.rate = 8 // so that there is always something that has to be left out
			faults := schedule(s)
			for i, f := range faults {
				if !referee.MeetsServer(f.kind) {
					continue
				}
				down := map[string]bool{}
				for _, other := range faults {
					if referee.MeetsServer(other.kind) && other.at <= f.at && other.end >= f.at {
						require.False(t, down[other.store], "%s has two faults at once", other.store)
						down[other.store] = true
					}
				}
				require.LessOrEqual(t, len(down), (n-1)/2, "of %d servers, at %v: %v", n, f.at, down)
				most = max(most, len(down))
				if f.kind == referee.Restart {
					require.Greater(t, f.end-f.at, s.expiry+s.expiry/100+2*time.Millisecond, "fault %d of seed %d", i+1, seed)
				}
				if f.kind == referee.Restart && f.end-f.at == s.away() {
					calms++
				}
			}
		}
		require.Equal(t, (n-1)/2, most, "there is never as much as there may be")
		require.NotZero(t, calms, "no calm has ever met a server that could not be back yet")
	}
}

func TestFaultsOfAQuorumMeetItsServers(t *testing.T) {
	s := of(3, long(referee.Async, true, 1))
	seen := map[string]bool{}
	for _, f := range schedule(s) {
		require.NotEqual(t, referee.Promote, f.kind)
		switch f.kind {
		case referee.Kill, referee.Stop:
			require.Empty(t, f.store)
			require.NotZero(t, f.worker)
		case referee.Freeze, referee.Crash, referee.Restart:
			require.Contains(t, []string{"server 1", "server 2", "server 3"}, f.store)
			require.Zero(t, f.worker)
		default:
			require.Contains(t, []string{"server 1", "server 2", "server 3", referee.Secondary}, f.store)
			seen[f.store] = true
		}
	}
	require.Len(t, seen, 4)
}

func TestFaultsThatAreLeftOut(t *testing.T) {
	for _, f := range schedule(long(referee.Alone, false, 1)) {
		require.NotEqual(t, referee.Secondary, f.store)
		require.NotEqual(t, referee.Restart, f.kind)
		require.NotEqual(t, referee.Promote, f.kind)
		require.NotEqual(t, referee.Crash, f.kind, "the primary's server keeps no data")
	}
	for _, f := range schedule(of(5, long(referee.Alone, false, 1))) {
		require.NotEqual(t, referee.Secondary, f.store)
		require.NotEqual(t, referee.Restart, f.kind)
	}
	s := long(referee.Async, true, 1)
	s.rate = 0
	require.Empty(t, schedule(s))
}
