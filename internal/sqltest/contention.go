package sqltest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// Sixteen at once for one key: one wins, the others are refused, and none gets an error.
func testOneOfManyWins(t *testing.T, s *Store) {
	const contenders, rounds = 16, 50
	for _, race := range []struct {
		name    string
		winners int
		prepare func(key string)
	}{
		{"missing", 1, func(string) {}},
		{"expired", 1, func(key string) {
			c := s.Claim(key)
			s.MustGrant(t, c)
			s.End(t, c.Key)
		}},
		{"held", 0, func(key string) { s.MustGrant(t, s.Claim(key)) }},
	} {
		for round := range rounds {
			key := fmt.Sprint(race.name, round)
			race.prepare(key)
			require.Len(t, s.Race(t, key, contenders), race.winners, key)
		}
	}
}

// The same claim sent several times at once, as when a connection breaks while the server is still at work, is granted each
// time.
func testSameClaimAtOnce(t *testing.T, s *Store) {
	for round := range 20 {
		c := s.Claim(fmt.Sprint(round))
		grants := make(chan loki.Grant, connections)
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				g, err := s.Grant(t.Context(), c)
				if err != nil {
					t.Error(err)
				}
				grants <- g
			})
		}
		wg.Wait()
		close(grants)
		fence := s.MustGrant(t, c)
		for g := range grants {
			require.True(t, g.Held)
			if s.RaisesFences {
				require.LessOrEqual(t, g.Fence, fence)
			} else {
				require.Equal(t, fence, g.Fence)
			}
		}
		s.MustRelease(t, c)
	}
}

func testRandomClaims(t *testing.T, s *Store) {
	granted, _ := RandomClaims(t, s)
	require.Greater(t, granted, 10)
}
