package postgreshandler_test

// This file is about who wins when many come at once.

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// Sixteen at once for one key: one wins, fifteen are told that they lost and to whom, and nobody sees an error.
func TestCase059_FirstInsertRace(t *testing.T) {
	t.Parallel()
	const contenders, rounds = 16, 50
	s := newStore(t)
	s.db.SetMaxOpenConns(contenders)
	s.db.SetMaxIdleConns(contenders)
	for _, race := range []struct {
		name    string
		winners int
		prepare func(key string)
	}{
		{"missing", 1, func(string) {}},
		{"expired", 1, func(key string) {
			c := s.claim(key)
			s.mustGrant(t, c)
			s.expire(t, c.Key)
		}},
		{"held", 0, func(key string) { s.mustGrant(t, s.claim(key)) }},
	} {
		t.Run(race.name, func(t *testing.T) {
			for round := range rounds {
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
			g, err := s.Grant(t.Context(), c)
			switch {
			case err != nil:
				t.Error(err)
			case g.Held:
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c)
			case g.HeldBy.ID == "" || g.HeldBy.Left <= 0:
				t.Errorf("refused, and told of no holder: %+v", g)
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
			require.Equal(t, fence, g.Fence)
		}
		s.mustRelease(t, c)
	}
}

// All operations on few keys at once, and sweeping: no error, as a deadlock would be one, and one holder at a time.
func TestServerEverythingAtOnce(t *testing.T) {
	t.Parallel()
	const contenders = 8
	s := newStore(t)
	s.db.SetMaxOpenConns(contenders)
	s.db.SetMaxIdleConns(contenders)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '61 seconds', 1 FROM generate_series(1, 500) AS i`)
	var wg sync.WaitGroup
	var inside [3]sync.Mutex
	for i := range contenders {
		wg.Go(func() {
			for round := range 60 {
				at := (i + round) % len(inside)
				c := s.claim(fmt.Sprint(at))
				g, err := s.Grant(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.Held {
					continue
				}
				if !inside[at].TryLock() {
					t.Error("two hold the key at once")
					return
				}
				_, err = s.Extend(t.Context(), c)
				inside[at].Unlock()
				if err == nil {
					err = s.Release(t.Context(), c)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
