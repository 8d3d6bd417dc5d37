package postgreshandler_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/sqlhandler"
)

// gate is what a grant or a release of key holds while it is at work.
const gate = `hashtextextended($1::text COLLATE "C", '$T'::regclass::oid::bigint)`

// shut holds the gate of key until open is called. send then makes a call in the background, and returns when it waits
// there; open returns when all of them have been answered.
func (s *store) shut(t *testing.T, key string) (send func(call func()), open func()) {
	t.Helper()
	tx, err := s.server.Open(t).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), s.fill("SELECT pg_advisory_xact_lock("+gate+")"), key)
	require.NoError(t, err)
	var calls sync.WaitGroup
	waiting := 0
	send = func(call func()) {
		t.Helper()
		calls.Go(call)
		waiting++
		require.Eventually(t, func() bool {
			var there int
			s.get(t, &there, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND (classid::bigint << 32 | objid::bigint) = "+gate, key)
			return there == waiting
		}, 20*time.Second, 5*time.Millisecond)
	}
	open = func() {
		t.Helper()
		require.NoError(t, tx.Commit())
		calls.Wait()
	}
	return send, open
}

// grant is for the background.
func (s *store) grant(t *testing.T, c loki.Claim) func() {
	return func() {
		g, err := s.Grant(t.Context(), c)
		if err != nil || !g.Held {
			t.Errorf("%+v: %v", g, err)
		}
	}
}

func (s *store) requireOutcomes(t *testing.T, key string, want ...sqlhandler.RunOutcome) []sqlhandler.Run {
	t.Helper()
	runs, err := s.History(t.Context(), key, 10)
	require.NoError(t, err)
	var outcomes []sqlhandler.RunOutcome
	for _, r := range runs {
		outcomes = append(outcomes, r.Outcome)
	}
	require.Equal(t, want, outcomes)
	return runs
}

// The grant is still at work when its caller gives up, and the release that follows it comes to the gate after it.
func TestServerReleaseBehindItsOwnGrant(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.Claim("k")
	send, open := s.shut(t, "k")
	send(s.grant(t, c))
	send(func() {
		if err := s.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
	open()
	require.Zero(t, s.Count(t), "the claim is held for its whole expiry, by nobody")
}

// A claim that came and was replaced while a grant waited has a run of its own all the same.
func TestServerHistoryOfWhatAGrantDidNotSee(t *testing.T) {
	t.Parallel()
	for outcome, end := range map[sqlhandler.RunOutcome]func(s *store, before, next *loki.Claim){
		sqlhandler.RunSuperseded: func(_ *store, before, next *loki.Claim) { next.Supersedes = before.Token },
		sqlhandler.RunExpired:    func(_ *store, before, _ *loki.Claim) { before.Expiry = time.Millisecond },
	} {
		t.Run(string(outcome), func(t *testing.T) {
			s := newStore(t, postgreshandler.WithHistory(time.Hour))
			before, next := s.Claim("k"), s.Claim("k")
			end(s, &before, &next)
			send, open := s.shut(t, "k")
			send(s.grant(t, before))
			send(func() {
				for { // an expiry of a millisecond may not have passed yet
					g, err := s.Grant(t.Context(), next)
					if err != nil {
						t.Error(err)
					}
					if err != nil || g.Held {
						return
					}
				}
			})
			open()
			runs := s.requireOutcomes(t, "k", sqlhandler.RunHeld, outcome)
			require.Equal(t, []string{next.Token, before.Token}, []string{runs[0].Token, runs[1].Token})
			require.Greater(t, runs[0].Fence, runs[1].Fence)
		})
	}
}

// What became of a claim is judged by its row as it was when it ended, and not as it was before the wait.
func TestServerHistoryOfAClaimThatWasRenewed(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	a, next := s.Claim("k"), s.Claim("k")
	next.Supersedes = a.Token
	s.MustGrant(t, a)
	s.exec(t, "UPDATE $T SET expires_at = granted_at")
	send, open := s.shut(t, "k")
	send(s.grant(t, next))
	s.exec(t, "UPDATE $T SET expires_at = clock_timestamp() + interval '1 hour', fence = fence + 1000000000") // as a renewal does
	var fence int64
	s.get(t, &fence, "SELECT fence FROM $T")
	open()
	runs := s.requireOutcomes(t, "k", sqlhandler.RunHeld, sqlhandler.RunSuperseded)
	require.Equal(t, fence, runs[1].Fence)
	require.Equal(t, fence+1, runs[0].Fence)
}

// A key that changes hands whenever a grant looks is an answer that the grant does not get: the store is unavailable, for now.
func TestGrantsThatAreOvertakenAreSentAgain(t *testing.T) {
	h, s := newStub(t, sqltest.First(3, nil, granted(9)))
	g, err := h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{Held: true, Fence: 9}, g)
	require.Len(t, s.Sent(), 4)

	h, s = newStub(t, sqltest.Always(nil, nil))
	_, err = h.Grant(t.Context(), claim)
	require.True(t, loki.IsUnavailable(err))
	require.ErrorContains(t, err, "changed hands")
	require.Len(t, s.Sent(), 4, "not for ever")
}
