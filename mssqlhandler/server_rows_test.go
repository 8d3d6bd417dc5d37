package mssqlhandler_test

// This file is about what stands in the table: keys, times, and the rows of LokiNet.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// Whatever differs in anything is another lock.
func TestServerKeyIdentity(t *testing.T) {
	const room = loki.MaxKeyLength - 27 // the test's own prefix
	long := strings.Repeat("k", 299-27)
	for name, keys := range map[string][]string{
		"TestCase047_NameLongerThanTheColumn": {long + "1", long + "2", long},
		"TestCase047_Longest":                 {strings.Repeat("k", room), strings.Repeat("k", room-1) + "l"},
		"TestCase049_LetterCase":              {"Orders", "orders", "ORDERS"},
		"TestCase049_Accents":                 {"resume", "résumé", "re\u0301sume\u0301", "straße", "strasse"},
		"TestCase050_OtherAlphabets":          {"дом", "том", "дым", "???", "家庭", "家族", "𐍈𐍉", "𐍉𐍈"},
		"Blanks":                              {"a", "a ", "a  ", " a", "a b", "ab", "a\u00a0", "a\t", "a\x1f", "a \x1f", "a\x1f\x1f", "a\x1f ", "fence", "fence\x1f"},
		"Quotes":                              {"it's", "its", "it''s", "a]b", "a--b", "a%b", "a_b"},
		"Hyphens":                             {"co-op", "coop"},
		"Widths":                              {"ｱ", "ア", "あ"},
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
				if name != "Blanks" {
					var stored string
					s.get(t, &stored, "SELECT ServiceKey FROM $T WHERE Token = @p1", c.Token)
					require.Equal(t, c.Key, stored, "verbatim")
				}
				require.Equal(t, c.Holder, s.mustBeBusy(t, s.claim(strings.TrimPrefix(c.Key, s.prefix))).ID, "each blocks its own twin")
				require.NoError(t, s.Release(t.Context(), c))
			}
			require.Zero(t, s.rows(t))
		})
	}
}

// Read against the server's own clock, from before and after the grant.
func TestCase045_ExpiryByTheServersClock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	clock := func() (now time.Time) {
		s.get(t, &now, "SELECT SYSUTCDATETIME()")
		return now
	}
	for _, expiry := range []time.Duration{
		time.Millisecond, time.Millisecond + 1, 20 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond,
		15 * time.Second, 90 * time.Minute, 36 * time.Hour, 25 * 24 * time.Hour, loki.MaxExpiry,
	} {
		c := s.claim("k" + expiry.String())
		c.Expiry = expiry
		kept := expiry.Truncate(time.Millisecond)
		if kept < expiry {
			kept += time.Millisecond
		}
		check := func(before time.Time) {
			t.Helper()
			after := clock()
			var until time.Time
			s.get(t, &until, "SELECT ExpiresAt FROM $T WHERE ServiceKey = @p1", c.Key)
			require.False(t, until.Before(before.Add(kept)), "%v: at least the expiry: %v", expiry, until.Sub(before))
			require.False(t, until.After(after.Add(kept)), "%v: not more than the expiry: %v", expiry, until.Sub(after))
		}
		before := clock()
		s.mustGrant(t, c)
		check(before)
		if expiry < time.Second {
			continue // it may be over by now
		}
		before = clock()
		held, err := s.Extend(t.Context(), c)
		require.NoError(t, err)
		require.True(t, held, "%v", expiry)
		check(before)
		before = clock()
		s.mustGrant(t, c)
		check(before)
	}
}

// A grant that replaces a row draws its fence from the very moment that its expiry counts from.
func TestServerExpiryIsExactToTheMillisecond(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.claim("k")
	for _, expiry := range []time.Duration{
		1, time.Millisecond, time.Millisecond + 1, 7 * time.Millisecond, 999 * time.Millisecond, time.Second, 1001 * time.Millisecond,
		59999 * time.Millisecond, time.Hour + time.Millisecond, 24*24*time.Hour + 20*time.Hour + 31*time.Minute + 23*time.Second + 648*time.Millisecond, // one more than an int has
		365*24*time.Hour + 999*time.Millisecond, loki.MaxExpiry - time.Millisecond, loki.MaxExpiry,
	} {
		s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key)
		s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate, Token, ExpiresAt, Fence) VALUES (@p1, GETUTCDATE(), N'over', DATEADD(second, -1, SYSUTCDATETIME()), 1)", c.Key) // not yet to be swept
		c.Expiry = expiry
		fence := s.mustGrant(t, c)
		var until int64
		s.get(t, &until, "SELECT DATEDIFF_BIG(microsecond, '19700101', ExpiresAt) FROM $T WHERE ServiceKey = @p1", c.Key)
		require.Equal(t, (expiry + time.Millisecond - 1).Truncate(time.Millisecond), time.Duration(until-fence)*time.Microsecond)
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

// lokinet writes a row as LokiNet does, age ago by the server's local clock.
func (s *store) lokinet(t *testing.T, key string, age time.Duration) {
	t.Helper()
	s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, DATEADD(second, -@p2, SYSDATETIME()))", s.prefix+key, int64(age/time.Second))
}

func TestServerLokiNetRowsAreBusy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.lokinet(t, "k", 1000*time.Hour)
	require.Equal(t, loki.Holder{ID: "LokiNet"}, s.mustBeBusy(t, s.claim("k")))
	by, held, err := s.Inspect(t.Context(), s.prefix+"k")
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, loki.Holder{ID: "LokiNet"}, by)

	c := s.claim("k")
	held, err = s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, s.Release(t.Context(), c))
	require.Equal(t, 1, s.rows(t), "the row is LokiNet's")

	s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key) // as LokiNet releases
	s.mustGrant(t, c)
}

func TestServerLokiNetRowsThatAreTooOldAreTaken(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithLokiNetExpiry(time.Hour))
	s.lokinet(t, "young", 59*time.Minute)
	s.lokinet(t, "old", 61*time.Minute)

	require.Equal(t, "LokiNet", s.mustBeBusy(t, s.claim("young")).ID)
	_, held, err := s.Inspect(t.Context(), s.prefix+"young")
	require.NoError(t, err)
	require.True(t, held)

	_, held, err = s.Inspect(t.Context(), s.prefix+"old")
	require.NoError(t, err)
	require.False(t, held)
	c := s.claim("old")
	require.Positive(t, s.mustGrant(t, c))
	by := s.mustBeBusy(t, s.claim("old"))
	require.Equal(t, c.Holder, by.ID)
	require.WithinDuration(t, by.Until.Add(-c.Expiry), by.Since, time.Second, "the date is the claim's own")
}

// LokiNet deletes by key when its job ends, whoever's the row is by then: what it deletes is not taken for held.
func TestServerLokiNetReleasesARowThatWasTakenOver(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithLokiNetExpiry(time.Hour))
	s.lokinet(t, "k", 2*time.Hour)
	c := s.claim("k")
	s.mustGrant(t, c)
	s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key)
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.False(t, held)
	require.Zero(t, s.rows(t), "and it is not taken anew by itself")
}

// LokiNet sees a row of Loki's as one of its own: it does not insert another one.
func TestServerLokiNetRespectsClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.claim("k")
	s.mustGrant(t, c)
	var date time.Time
	s.get(t, &date, "SELECT CreationDate FROM $T WHERE ServiceKey = @p1", c.Key)
	_, err := s.db.ExecContext(t.Context(), s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETDATE())"), c.Key)
	require.Error(t, err)
}
