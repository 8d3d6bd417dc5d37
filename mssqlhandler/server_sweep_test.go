package mssqlhandler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/sqlhandler"
)

// onAnEmptyTable is a store whose table has no rows but the test's.
func onAnEmptyTable(t *testing.T, opts ...mssqlhandler.Option) *store {
	t.Helper()
	s := newStore(t)
	own := *s
	own.table = shared.table + "_" + strings.ToLower(s.Prefix[:6])
	own.migrate(t)
	own.use(s.db, append(opts, mssqlhandler.WithTable(own.table))...)
	return &own
}

// left is keys that are in the table, without the test's prefix.
func (s *store) left(t *testing.T) (keys []string) {
	t.Helper()
	require.NoError(t, s.db.SelectContext(t.Context(), &keys, s.on("SELECT ServiceKey FROM $T ORDER BY ServiceKey")))
	for i := range keys {
		keys[i] = strings.TrimPrefix(keys[i], s.Prefix)
	}
	return keys
}

// Rows that expired long ago go with the releases of other keys, a few at a time, wherever in the table they are. What
// may still mean something stays.
func TestServerSweepsExpiredRows(t *testing.T) {
	t.Parallel()
	s := onAnEmptyTable(t, mssqlhandler.WithHistory(time.Hour))
	insert := func(key, token, expires string, fence int64) {
		t.Helper()
		s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate, Token, Holder, ExpiresAt, Fence) VALUES (@p1, GETUTCDATE(), "+token+", N'gone', "+expires+", @p2)", s.Prefix+key, fence)
	}
	const long, justNow, later = "DATEADD(second, -61, SYSUTCDATETIME())", "DATEADD(second, -30, SYSUTCDATETIME())", "DATEADD(minute, 5, SYSUTCDATETIME())"
	for i := range 40 {
		insert(fmt.Sprintf("over%02d", i), "N'token'", long, 1)
		insert(fmt.Sprintf("over%02d live", i), "N'token'", later, 1)
	}
	kept := s.Claim("over kept")
	kept.Over, kept.Failed = true, true
	s.MustGrant(t, kept)
	s.exec(t, "UPDATE $T SET ExpiresAt = "+long+", CreationDate = DATEADD(minute, -5, CreationDate), RunEndedAt = DATEADD(minute, -4, RunEndedAt), Fence = 1 WHERE ServiceKey = @p1", kept.Key)
	insert("a just now", "N'token'", justNow, 1)
	insert("z ahead", "N'token'", long, time.Now().Add(time.Hour).UnixMicro())
	s.lokinet(t, "z lokinet", 1000*time.Hour)
	s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate, Token, ExpiresAt, Fence) VALUES (@p1, GETUTCDATE(), @p1, '20200101', 1)", "fence\x1f")

	const walks, stretch = 2, 8
	before := len(s.left(t))
	for range walks * (before/stretch + 2) {
		c := s.Claim("m")
		s.MustGrant(t, c)
		require.NoError(t, s.Release(t.Context(), c))
		now := len(s.left(t))
		require.LessOrEqual(t, before-now, stretch, "a few at a time")
		before = now
	}
	require.Len(t, s.left(t), 44)
	for _, key := range s.left(t) {
		if strings.HasPrefix(key, "over") {
			require.Contains(t, key, "live")
		}
	}
	require.Subset(t, s.left(t), []string{"a just now", "z ahead", "z lokinet", "fence\x1f"})
	runs := s.runs(t, "over07")
	require.Len(t, runs, 1)
	require.Equal(t, sqlhandler.RunExpired, runs[0].Outcome)
	require.Equal(t, "gone", runs[0].Holder)
	runs = s.runs(t, "over kept")
	require.Len(t, runs, 1)
	require.Equal(t, sqlhandler.RunFailed, runs[0].Outcome, "it was kept after that")
}

// Somebody else's open transaction has one of the rows: releases of other keys neither wait for it nor fail, on a server
// that can pass over it.
func TestServerSweepDoesNotFailARelease(t *testing.T) {
	t.Parallel()
	s := onAnEmptyTable(t)
	over := s.Claim("over")
	s.MustGrant(t, over)
	s.exec(t, "UPDATE $T SET ExpiresAt = DATEADD(hour, -1, SYSUTCDATETIME()) WHERE ServiceKey = @p1", over.Key)
	tx, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	_, err = tx.ExecContext(t.Context(), s.on("UPDATE $T SET Holder = N'looked at' WHERE ServiceKey = @p1"), over.Key)
	require.NoError(t, err)

	c := s.Claim("k")
	s.MustGrant(t, c)
	released := make(chan error, 1)
	go func() { released <- s.Release(t.Context(), c) }()
	require.Eventually(t, func() bool { return len(s.left(t)) == 1 }, 15*time.Second, 20*time.Millisecond, "a release comes first")
	select {
	case err := <-released:
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
	case <-time.After(2 * time.Second):
		require.NoError(t, tx.Rollback())
		require.NoError(t, <-released)
		t.Skip("this server ignores READPAST: it waits for a row that SQL Server passes over")
	}
	require.Equal(t, []string{"over"}, s.left(t))
}
