package postgreshandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// PostgreSQL cannot store a NUL: nothing is recorded under a shorter key.
func TestServerKeysWithANULAreRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, mode := range []string{"exec", "simple_protocol", "cache_statement"} {
		_, err := s.open(t, "default_query_exec_mode="+mode).Lock(t.Context(), s.Claim("a\x00b"))
		require.Error(t, err, mode)
		require.Zero(t, s.Count(t), mode)
	}
}

// Sessions in different zones, one of which is in a gap of its summer time, read and write the same moments.
func TestCase053_SessionsInDifferentZones(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.Claim("k")
	s.MustGrant(t, c)
	by := s.MustBeBusy(t, s.Claim("k"))
	for _, zone := range []string{"Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati"} {
		other := s.open(t, "timezone="+zone, "datestyle=SQL,DMY", "intervalstyle=iso_8601")
		seen := other.MustBeBusy(t, s.Claim("k"))
		require.Equal(t, by.Until, seen.Until, zone)
		require.Equal(t, by.Since, seen.Since, zone)
		require.InDelta(t, by.Left, seen.Left, float64(10*time.Second))
		other.MustExtend(t, c, true)
		now, _, err := s.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.WithinDuration(t, by.Until, now.Until, 10*time.Second)
		by = now
	}
}

// The key is sought in the index, never scanned for, and a renewal leaves the index alone.
func TestCase050_IndexIsUsed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var version int
	s.get(t, &version, "SELECT current_setting('server_version_num')::int / 10000")
	if version < 15 {
		t.Skipf("PostgreSQL %d does not tell its counts when asked to: there is nothing to compare", version)
	}
	s.exec(t, `INSERT INTO $T SELECT 'дом' || i, 't', 'h', now(), now() + interval '1 hour', 1 FROM generate_series(1, 20000) AS i`)
	s.exec(t, "ANALYZE $T")
	s.db.SetMaxOpenConns(1) // so that the counts are those of one session, which it tells when asked to
	count := func() (scans, tuples int) {
		s.exec(t, "SELECT pg_stat_force_next_flush()")
		require.NoError(t, s.db.QueryRowContext(t.Context(), s.fill("SELECT seq_scan, seq_tup_read FROM pg_stat_all_tables WHERE relid = '$T'::regclass")).Scan(&scans, &tuples))
		return scans, tuples
	}
	scans, tuples := count()
	c := s.Claim("дом20001")
	s.MustGrant(t, c)
	s.MustGrant(t, c)
	s.MustBeBusy(t, s.Claim("дом7"))
	s.MustExtend(t, c, true)
	_, _, err := s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	s.MustRelease(t, c)
	afterScans, afterTuples := count()
	require.Equal(t, scans, afterScans)
	require.LessOrEqual(t, afterTuples-tuples, 200, "a release looks at one page of the table, to sweep it")

	s.MustGrant(t, c)
	hot := func() (updates int) {
		s.exec(t, "SELECT pg_stat_force_next_flush()")
		s.get(t, &updates, "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = '$T'::regclass")
		return updates
	}
	before := hot()
	for range 300 {
		s.MustExtend(t, c, true)
	}
	require.LessOrEqual(t, hot()-before, 15, "updates that were not heap-only")
}
