package postgreshandler_test

// This file is about what stands in the table: keys and times.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// Whatever differs in anything is another lock, and is stored verbatim.
func TestServerKeyIdentity(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 299)
	for name, keys := range map[string][]string{
		"TestCase047_NameLongerThanAColumn": {long + "1", long + "2", long},
		"TestCase047_Longest":               {strings.Repeat("家", loki.MaxKeyLength), strings.Repeat("家", loki.MaxKeyLength-1) + "k"},
		"TestCase049_LetterCase":            {"Orders", "orders", "ORDERS"},
		"TestCase049_Accents":               {"resume", "résumé", "re\u0301sume\u0301", "straße", "strasse"},
		"TestCase050_OtherAlphabets":        {"дом", "том", "дым", "???", "家庭", "家族", "𐍈𐍉", "𐍉𐍈"},
		"Blanks":                            {"a", "a ", "a  ", " a", "a b", "ab", "a\u00a0", "a\t", "a\x1f", "a\n", "\n"},
		"Quotes":                            {"it's", "its", "it''s", `a"b`, "a--b", "a%b", "a_b", `a\b`, `a\\b`, "$1", "?"},
		"Hyphens":                           {"co-op", "coop"},
		"Widths":                            {"ｱ", "ア", "あ"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var claims []loki.Claim
			for _, key := range keys {
				c := s.claim(key)
				s.mustGrant(t, c)
				claims = append(claims, c)
			}
			require.Equal(t, len(keys), s.rows(t))
			for _, c := range claims {
				var stored string
				s.get(t, &stored, "SELECT service_key FROM $T WHERE token = $1", c.Token)
				require.Equal(t, c.Key, stored)
				require.Equal(t, c.Holder, s.mustBeBusy(t, s.claim(c.Key)).ID, "each blocks its own twin")
				s.mustRelease(t, c)
			}
			require.Zero(t, s.rows(t))
		})
	}
}

// Read against the server's own clock, from before and after the grant, in whatever zone the session is.
func TestCase045_ExpiryByTheServersClock(t *testing.T) {
	t.Parallel()
	s := newStore(t).open(t, "timezone=America/New_York")
	clock := func() (now int64) {
		s.get(t, &now, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
		return now
	}
	for _, expiry := range []time.Duration{
		time.Millisecond, time.Millisecond + 1, 20 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond,
		15 * time.Second, 90 * time.Minute, 36 * time.Hour, 25 * 24 * time.Hour, loki.MaxExpiry,
	} {
		c := s.claim("k" + expiry.String())
		c.Expiry = expiry
		kept := (expiry + time.Millisecond - 1).Truncate(time.Millisecond).Microseconds()
		check := func(before int64) {
			t.Helper()
			after := clock()
			var until int64
			s.get(t, &until, "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM $T WHERE service_key = $1", c.Key)
			require.GreaterOrEqual(t, until, before+kept, "%v: at least the expiry", expiry)
			require.LessOrEqual(t, until, after+kept, "%v: not more than the expiry", expiry)
		}
		before := clock()
		s.mustGrant(t, c)
		check(before)
		if expiry < time.Second {
			continue // it may be over by now
		}
		before = clock()
		s.mustExtend(t, c, true)
		check(before)
		before = clock()
		s.mustGrant(t, c)
		check(before)
	}
}

func TestServerExpiryEnds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.claim("k")
	c.Expiry = 300 * time.Millisecond
	begun := time.Now()
	s.mustGrant(t, c)
	for {
		held, err := s.Lock(t.Context(), s.claim("k"))
		require.NoError(t, err)
		if held {
			break
		}
		require.Less(t, time.Since(begun), time.Minute)
	}
	require.GreaterOrEqual(t, time.Since(begun), c.Expiry)
}

// Sessions in different zones, one of which is in a gap of its summer time, read and write the same moments.
func TestCase053_SessionsInDifferentZones(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.claim("k")
	s.mustGrant(t, c)
	by := s.mustBeBusy(t, s.claim("k"))
	for _, zone := range []string{"Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati"} {
		other := s.open(t, "timezone="+zone, "datestyle=SQL,DMY", "intervalstyle=iso_8601")
		seen := other.mustBeBusy(t, s.claim("k"))
		require.Equal(t, by.Until, seen.Until, zone)
		require.Equal(t, by.Since, seen.Since, zone)
		require.InDelta(t, by.Left, seen.Left, float64(10*time.Second))
		other.mustExtend(t, c, true)
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
	c := s.claim("дом20001")
	s.mustGrant(t, c)
	s.mustGrant(t, c)
	s.mustBeBusy(t, s.claim("дом7"))
	s.mustExtend(t, c, true)
	_, _, err := s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	s.mustRelease(t, c)
	afterScans, afterTuples := count()
	require.Equal(t, scans, afterScans)
	require.LessOrEqual(t, afterTuples-tuples, 200, "a release looks at one page of the table, to sweep it")

	s.mustGrant(t, c)
	hot := func() (updates int) {
		s.exec(t, "SELECT pg_stat_force_next_flush()")
		s.get(t, &updates, "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = '$T'::regclass")
		return updates
	}
	before := hot()
	for range 300 {
		s.mustExtend(t, c, true)
	}
	require.LessOrEqual(t, hot()-before, 15, "updates that were not heap-only")
}
