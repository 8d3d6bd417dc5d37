package mssqlhandler_test

// This file is about who wins on a real server, when many come at once.

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// Sixteen at once for one key: one wins, fifteen are told that they lost, and nobody sees an error.
func TestCase059_FirstInsertRace(t *testing.T) {
	t.Parallel()
	const contenders = 16
	s := newStore(t)
	for _, race := range []struct {
		name            string
		rounds, winners int
		prepare         func(key string)
	}{
		{"missing", 50, 1, func(string) {}},
		{"expired", 50, 1, func(key string) {
			c := s.claim(key)
			s.mustGrant(t, c)
			s.expire(t, c.Key)
		}},
		{"held", 50, 0, func(key string) { s.mustGrant(t, s.claim(key)) }},
	} {
		t.Run(race.name, func(t *testing.T) {
			for round := range race.rounds {
				key := fmt.Sprint(race.name, round)
				race.prepare(key)
				require.Len(t, s.race(t, key, contenders), race.winners, "round %d", round)
			}
		})
	}
}

// race lets contenders go for one key at once and returns the claims that won.
func (s *store) race(t *testing.T, key string, contenders int) (won []loki.Claim) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards won
		start = make(chan struct{})
	)
	for range contenders {
		wg.Go(func() {
			<-start
			c := s.claim(key)
			held, err := s.Lock(t.Context(), c)
			if err != nil {
				t.Error(err)
			} else if held {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c)
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}

// The same claim sent twice at once, as when a connection breaks while the server is still at work, is granted twice.
func TestServerSameClaimAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for round := range 20 {
		c := s.claim(fmt.Sprint(round))
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
		fence := s.mustGrant(t, c)
		for g := range grants {
			require.True(t, g.Held)
			require.LessOrEqual(t, g.Fence, fence)
		}
		require.NoError(t, s.Release(t.Context(), c))
	}
}
