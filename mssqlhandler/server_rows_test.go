package mssqlhandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// A grant that replaces a row draws its fence from the very moment that its expiry counts from.
func TestServerExpiryIsExactToTheMillisecond(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.Claim("k")
	for _, expiry := range []time.Duration{
		1, time.Millisecond, time.Millisecond + 1, 7 * time.Millisecond, 999 * time.Millisecond, time.Second, 1001 * time.Millisecond,
		59999 * time.Millisecond, time.Hour + time.Millisecond, 24*24*time.Hour + 20*time.Hour + 31*time.Minute + 23*time.Second + 648*time.Millisecond, // one more than an int has
		365*24*time.Hour + 999*time.Millisecond, loki.MaxExpiry - time.Millisecond, loki.MaxExpiry,
	} {
		s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key)
		s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate, Token, ExpiresAt, Fence) VALUES (@p1, GETUTCDATE(), N'over', DATEADD(second, -1, SYSUTCDATETIME()), 1)", c.Key) // not yet to be swept
		c.Expiry = expiry
		fence := s.MustGrant(t, c)
		var until int64
		s.get(t, &until, "SELECT DATEDIFF_BIG(microsecond, '19700101', ExpiresAt) FROM $T WHERE ServiceKey = @p1", c.Key)
		require.Equal(t, (expiry + time.Millisecond - 1).Truncate(time.Millisecond), time.Duration(until-fence)*time.Microsecond)
	}
}

// lokinet writes a row as LokiNet does, age ago by the server's local clock.
func (s *store) lokinet(t *testing.T, key string, age time.Duration) {
	t.Helper()
	s.exec(t, "INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, DATEADD(second, -@p2, SYSDATETIME()))", s.Prefix+key, int64(age/time.Second))
}

func TestServerLokiNetRowsAreBusy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.lokinet(t, "k", 1000*time.Hour)
	require.Equal(t, loki.Holder{ID: "LokiNet"}, s.MustBeBusy(t, s.Claim("k")))
	by, held, err := s.Inspect(t.Context(), s.Prefix+"k")
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, loki.Holder{ID: "LokiNet"}, by)

	c := s.Claim("k")
	held, err = s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, s.Release(t.Context(), c))
	require.Equal(t, 1, s.Count(t), "the row is LokiNet's")

	s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key) // as LokiNet releases
	s.MustGrant(t, c)
}

func TestServerLokiNetRowsThatAreTooOldAreTaken(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithLokiNetExpiry(time.Hour))
	s.lokinet(t, "young", 59*time.Minute)
	s.lokinet(t, "old", 61*time.Minute)

	require.Equal(t, "LokiNet", s.MustBeBusy(t, s.Claim("young")).ID)
	_, held, err := s.Inspect(t.Context(), s.Prefix+"young")
	require.NoError(t, err)
	require.True(t, held)

	_, held, err = s.Inspect(t.Context(), s.Prefix+"old")
	require.NoError(t, err)
	require.False(t, held)
	c := s.Claim("old")
	require.Positive(t, s.MustGrant(t, c))
	by := s.MustBeBusy(t, s.Claim("old"))
	require.Equal(t, c.Holder, by.ID)
	require.WithinDuration(t, by.Until.Add(-c.Expiry), by.Since, time.Second, "the date is the claim's own")
}

// LokiNet deletes by key when its job ends, whoever's the row is by then: what it deletes is not taken for held.
func TestServerLokiNetReleasesARowThatWasTakenOver(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithLokiNetExpiry(time.Hour))
	s.lokinet(t, "k", 2*time.Hour)
	c := s.Claim("k")
	s.MustGrant(t, c)
	s.exec(t, "DELETE FROM $T WHERE ServiceKey = @p1", c.Key)
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.False(t, held)
	require.Zero(t, s.Count(t), "and it is not taken anew by itself")
}

// LokiNet sees a row of Loki's as one of its own: it does not insert another one.
func TestServerLokiNetRespectsClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.Claim("k")
	s.MustGrant(t, c)
	var date time.Time
	s.get(t, &date, "SELECT CreationDate FROM $T WHERE ServiceKey = @p1", c.Key)
	_, err := s.db.ExecContext(t.Context(), s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETDATE())"), c.Key)
	require.Error(t, err)
}
