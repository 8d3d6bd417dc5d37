package postgreshandler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/sqlhandler"
)

func TestServerHistory(t *testing.T) {
	t.Parallel()
	sqltest.RunHistory(t, func(t *testing.T) (*sqltest.Store, sqltest.Handler) {
		s := newStore(t, postgreshandler.WithHistory(time.Hour))
		return s.Store, postgreshandler.New(s.db, postgreshandler.WithSchema(s.schema))
	})
}

func TestServerHistoryTellsWhatBecameOfEachClaim(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	var want []sqlhandler.Run
	take := func(change func(*loki.Claim)) loki.Claim {
		t.Helper()
		c := s.Claim("k")
		if change != nil {
			change(&c)
		}
		fence := s.MustGrant(t, c)
		want = append([]sqlhandler.Run{{Token: c.Token, Holder: c.Holder, Fence: fence}}, want...)
		return c
	}
	ends := func(as sqlhandler.RunOutcome) { want[0].Outcome = as }
	requireRuns := func() {
		t.Helper()
		runs, err := s.History(t.Context(), "k", 100)
		require.NoError(t, err)
		require.Len(t, runs, len(want))
		for i, r := range runs {
			require.False(t, r.Since.IsZero())
			require.False(t, r.Until.Before(r.Since))
			if r.Outcome != sqlhandler.RunHeld && r.Outcome != sqlhandler.RunExpired {
				require.WithinDuration(t, time.Now(), r.Until, 20*time.Second, "when it ended, not when it would have expired")
			}
			r.Since, r.Until = time.Time{}, time.Time{}
			require.Equal(t, want[i], r)
		}
	}

	requireRuns()
	c := take(nil)
	ends(sqlhandler.RunHeld)
	requireRuns()
	s.MustGrant(t, c)
	s.MustExtend(t, c, true)
	s.MustBeBusy(t, s.Claim("k"))
	requireRuns() // it is one run
	s.MustRelease(t, c)
	s.MustRelease(t, c)
	ends(sqlhandler.RunReleased)
	requireRuns()

	c = take(nil)
	c.Failed = true
	s.MustRelease(t, c)
	ends(sqlhandler.RunFailed)
	requireRuns()

	c = take(nil)
	s.End(t, "k")
	ends(sqlhandler.RunExpired)
	requireRuns() // also while it is the row of nobody
	s.MustRelease(t, c)
	requireRuns() // and when it was released too late

	c = take(nil)
	s.End(t, "k")
	ends(sqlhandler.RunExpired)
	next := take(nil)
	ends(sqlhandler.RunHeld)
	requireRuns() // taken over
	s.MustRelease(t, c)
	requireRuns()

	take(func(c *loki.Claim) { c.Supersedes = next.Token })
	want[1].Outcome = sqlhandler.RunSuperseded
	ends(sqlhandler.RunHeld)
	requireRuns()

	s.End(t, "k")
	s.exec(t, "UPDATE $T SET expires_at = expires_at - interval '2 minutes', granted_at = granted_at - interval '2 minutes', fence = 1")
	want[0].Fence = 1
	ends(sqlhandler.RunExpired)
	kept := s.Claim("kept")
	kept.Over, kept.Failed = true, true
	s.MustGrant(t, kept)
	s.exec(t, "UPDATE $T SET expires_at = clock_timestamp() - interval '2 minutes', fence = 1 WHERE service_key = 'kept'")
	other := s.Claim("other")
	for deadline := time.Now().Add(10 * time.Second); s.Count(t) > 0; {
		require.True(t, time.Now().Before(deadline))
		s.MustGrant(t, other)
		s.MustRelease(t, other)
	}
	var swept string
	s.get(t, &swept, "SELECT outcome FROM $H WHERE token = $1", want[0].Token)
	require.Equal(t, "expired", swept)
	s.get(t, &swept, "SELECT outcome FROM $H WHERE token = $1", kept.Token)
	require.Equal(t, "failed", swept, "it was kept after that")

	runs, err := s.History(t.Context(), "k", 2)
	require.NoError(t, err)
	require.Len(t, runs, 2)
}

// A fence that the clock has not passed stays in the row, which is no run of anybody's.
func TestServerHistoryKnowsNoRemembered(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	c := s.Claim("k")
	c.Fence = time.Now().Add(time.Hour).UnixMicro()
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	require.Equal(t, 1, s.Count(t))
	d := s.Claim("k")
	s.MustGrant(t, d)
	s.MustRelease(t, d)
	runs, err := s.History(t.Context(), "k", 10)
	require.NoError(t, err)
	require.Len(t, runs, 2)
	require.Equal(t, []string{d.Token, c.Token}, []string{runs[0].Token, runs[1].Token})
}

func TestServerHistoryIsPrunedByAge(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Minute))
	s.exec(t, `INSERT INTO $H SELECT 'k', now() - interval '1 hour' - i * interval '1 second', 't', 'h', 1, now() - i * interval '1 second', 'released' FROM generate_series(1, 100) AS i`)
	c := s.Claim("other")
	left := func() (n int) {
		s.get(t, &n, "SELECT count(*) FROM $H WHERE service_key = 'k'")
		return n
	}
	for i := range 6 {
		before := left()
		s.MustGrant(t, c)
		s.MustRelease(t, c)
		require.LessOrEqual(t, before-left(), 8, "a few at a time, in round %d", i)
	}
	require.InDelta(t, 59, left(), 3, "what is younger stays")
	s.MustRelease(t, c)
	require.InDelta(t, 59, left(), 3)
}

func TestServerWithoutHistory(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.EveryOperation(t)
	var n int
	s.get(t, &n, "SELECT count(*) FROM $H")
	require.Zero(t, n)
	_, err := s.History(t.Context(), "k", 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "WithHistory")
	for _, keep := range []time.Duration{0, -1} {
		require.ErrorContains(t, postgreshandler.New(s.db, postgreshandler.WithHistory(keep)).Validate(), fmt.Sprint(keep))
	}
}
