package mssqlhandler_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/sqlhandler"
)

// runs is the history of key, the newest first.
func (s *store) runs(t *testing.T, key string) []sqlhandler.Run {
	t.Helper()
	runs, err := s.History(t.Context(), s.Prefix+key, 100)
	require.NoError(t, err)
	return runs
}

// ended is how many ended claims of key the history has a row for.
func (s *store) ended(t *testing.T, key string) (n int) {
	t.Helper()
	s.get(t, &n, "SELECT COUNT(*) FROM $H WHERE ServiceKey = @p1", s.Prefix+key)
	return n
}

func TestServerHistory(t *testing.T) {
	t.Parallel()
	own := onAnEmptyTable(t) // other tests count what releases remove
	sqltest.RunHistory(t, func(t *testing.T) (*sqltest.Store, sqltest.Handler) {
		s := *own
		s.use(own.db, mssqlhandler.WithHistory(time.Hour), mssqlhandler.WithTable(own.table))
		return s.Store, mssqlhandler.New(own.db, mssqlhandler.WithTable(own.table))
	})
}

// One row for each claim, whatever was asked of it, with what became of it.
func TestServerHistoryTellsOutcomes(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithHistory(time.Hour), mssqlhandler.WithLokiNetExpiry(time.Hour))
	require.Empty(t, s.runs(t, "k"))
	s.lokinet(t, "k", 2*time.Hour)

	released, failed, expired, late := s.Claim("k"), s.Claim("k"), s.Claim("k"), s.Claim("k")
	superseded, held := s.Claim("k"), s.Claim("k")
	want := []sqlhandler.Run{{Holder: "LokiNet", Outcome: sqlhandler.RunExpired}}
	grant := func(c loki.Claim, outcome sqlhandler.RunOutcome) {
		t.Helper()
		fence := s.MustGrant(t, c)
		want = append([]sqlhandler.Run{{Token: c.Token, Holder: c.Holder, Fence: fence, Outcome: outcome}}, want...)
	}
	grant(released, sqlhandler.RunReleased)
	require.Equal(t, want[0].Fence, s.MustGrant(t, released), "the same claim again is not another run")
	held1, err := s.Extend(t.Context(), released)
	require.NoError(t, err)
	require.True(t, held1)
	require.NoError(t, s.Release(t.Context(), released))
	require.NoError(t, s.Release(t.Context(), released), "nor is a release that is sent twice")
	failed.Failed = true
	grant(failed, sqlhandler.RunFailed)
	require.NoError(t, s.Release(t.Context(), failed))
	grant(expired, sqlhandler.RunExpired)
	s.End(t, expired.Key)
	require.Equal(t, sqlhandler.RunExpired, s.runs(t, "k")[0].Outcome, "also while nobody has taken the key")
	grant(late, sqlhandler.RunExpired)
	s.End(t, late.Key)
	require.NoError(t, s.Release(t.Context(), late), "too late to have been in time")
	grant(superseded, sqlhandler.RunSuperseded)
	held.Supersedes = superseded.Token
	grant(held, sqlhandler.RunHeld)

	got := s.runs(t, "k")
	require.Len(t, got, len(want))
	for i, run := range got {
		if run.Token == "" {
			require.Zero(t, run.Since, "whose clock a date of LokiNet's is from it does not say")
		} else {
			require.WithinRange(t, run.Since, run.Until.Add(-time.Hour), run.Until.Add(5*time.Millisecond), "%v", run)
			require.WithinDuration(t, time.Now(), run.Since, time.Hour)
		}
		run.Since, run.Until = time.Time{}, time.Time{}
		require.Equal(t, want[i], run)
	}
	require.WithinDuration(t, got[0].Until, got[1].Until, time.Minute, "one that holds is told with its expiry")
	few, err := s.History(t.Context(), s.Prefix+"k", 2)
	require.NoError(t, err)
	require.Equal(t, got[:2], few)
	require.Equal(t, len(want)-1, s.ended(t, "k"), "the one that holds is in the table of locks")
}

// A handler without the option leaves no trace and needs no second table; one with it says at its first claim that the table is not
// there, and not when there is something to be written.
func TestServerHistoryIsOnRequest(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.Claim("k")
	s.MustGrant(t, c)
	require.NoError(t, s.Release(t.Context(), c))
	require.Zero(t, s.ended(t, "k"))

	without := shared.table + "_alone"
	_, err := s.db.ExecContext(t.Context(), "SELECT * INTO [dbo].["+without+"] FROM [dbo].["+shared.table+"] WHERE 1 = 0")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := s.db.ExecContext(context.WithoutCancel(t.Context()), "DROP TABLE [dbo].["+without+"]")
		require.NoError(t, err)
	})
	alone := mssqlhandler.New(s.db, mssqlhandler.WithTable(without))
	held, err := alone.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, alone.Release(t.Context(), c))

	missing := mssqlhandler.New(s.db, mssqlhandler.WithTable(without), mssqlhandler.WithHistory(time.Hour))
	held, err = missing.Lock(t.Context(), c)
	require.Error(t, err)
	require.False(t, held)
	require.False(t, loki.IsUnavailable(err), "%v", err)
	require.NoError(t, s.db.PingContext(t.Context()), "the connection is as good as before")
}

// Each release takes a few rows with it that are older than they are to be kept, whoever's they are.
func TestServerHistoryIsPruned(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithHistory(time.Hour))
	const old = 30
	for range old {
		s.exec(t, "INSERT INTO $H (ServiceKey, Token, EndedAt, Ending) VALUES (@p1, N'old', DATEADD(minute, -61, SYSUTCDATETIME()), 'released')", s.Prefix+"k")
	}
	s.exec(t, "INSERT INTO $H (ServiceKey, Token, EndedAt, Ending) VALUES (@p1, N'young', DATEADD(minute, -59, SYSUTCDATETIME()), 'released')", s.Prefix+"k")
	before := s.ended(t, "k")
	releases := 0
	for s.ended(t, "k") > 1 {
		c := s.Claim("other")
		s.MustGrant(t, c)
		require.NoError(t, s.Release(t.Context(), c))
		releases++
		now := s.ended(t, "k")
		require.LessOrEqual(t, before-now, 2*8, "a few at a time") // another test's release may have had its share
		before = now
		require.LessOrEqual(t, releases, old)
	}
	require.Equal(t, "young", s.runs(t, "k")[0].Token)
	require.Equal(t, releases, s.ended(t, "other"))
}
