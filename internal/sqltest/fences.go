package sqltest

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// connections is enough for real contention.
const connections = 4

func testFences(t *testing.T, s *Store) {
	future := time.Now().Add(1000 * time.Hour).UnixMicro()
	before := s.clock(t)
	a := s.Claim("k")
	require.GreaterOrEqual(t, s.MustGrant(t, a), before)

	a.Fence = future
	require.Equal(t, future, s.MustGrant(t, a), "raised to the floor")
	a.Fence = 1
	require.Equal(t, future, s.MustGrant(t, a), "and not lowered")
	a.Fence = future + 5
	s.MustExtend(t, a, true)

	s.End(t, a.Key)
	require.Equal(t, future+6, s.MustGrant(t, s.Claim("k")), "the last one plus one, where the clock is behind")
	s.Exec(t, s.SetFence, a.Key, int64(1))
	require.GreaterOrEqual(t, s.MustGrant(t, s.Claim("k")), before, "the clock, where it is ahead")

	fresh := s.Claim("fresh")
	fresh.Fence = future
	require.Equal(t, future, s.MustGrant(t, fresh), "the floor also counts for a key without a row")

	s.Exec(t, s.SetFence, a.Key, int64(math.MaxInt64))
	_, err := s.Grant(t.Context(), s.Claim("k"))
	require.Error(t, err, "no fencing token is left")
	require.False(t, loki.IsUnavailable(err))
}

// A floor that is ahead of the server's clock counts for later claims, although the claim that brought it was released.
func testFenceAheadOfTheClock(t *testing.T, s *Store) {
	a := s.Claim("a")
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	fence := s.MustGrant(t, a)
	require.GreaterOrEqual(t, fence, a.Fence)
	for range 3 {
		s.MustRelease(t, a)
		s.MustExtend(t, a, false)
		_, held, err := s.Inspect(t.Context(), a.Key)
		require.NoError(t, err)
		require.False(t, held)
		a = s.Claim("a")
		next := s.MustGrant(t, a)
		require.Greater(t, next, fence)
		fence = next
	}
}

// Each holder of one key gets a larger fencing token than every holder before, with releases in between.
func testFencesGrowUnderContention(t *testing.T, s *Store) {
	var (
		wg     sync.WaitGroup
		fences []int64 // guarded by the lock under test
	)
	for range connections {
		wg.Go(func() {
			for range 60 {
				c := s.Claim("k")
				g, err := s.Grant(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.Held {
					continue
				}
				fences = append(fences, g.Fence)
				if err := s.Release(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, fences)
	require.IsIncreasing(t, fences)
}
