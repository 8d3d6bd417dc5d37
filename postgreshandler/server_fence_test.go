package postgreshandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// A floor that is ahead of the server's clock counts for later claims, although the claim that brought it is gone. What is
// remembered for that goes when the clock has passed it.
func TestServerFenceAheadOfTheClockIsRemembered(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := s.Claim("a"), s.Claim("b")
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	fence := s.MustGrant(t, a)
	require.Equal(t, a.Fence, fence)
	s.MustRelease(t, a)
	_, held, err := s.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, held)
	s.MustExtend(t, a, false)
	c := s.Claim("a")
	require.Equal(t, fence+1, s.MustGrant(t, c))
	s.MustRelease(t, c)
	require.Equal(t, 1, s.Count(t))

	s.MustGrant(t, b)
	s.MustRelease(t, b)
	require.Equal(t, 1, s.Count(t), "it is of one key alone")
	s.exec(t, "UPDATE $T SET fence = 1, expires_at = expires_at - interval '1 minute'") // time goes by
	s.MustRelease(t, b)
	require.Zero(t, s.Count(t))
}

// A grant that waits, at the gate or for a row, draws its fence when it need wait no longer: whoever was granted and
// released meanwhile, which leaves no row, had a larger one than it would have had before.
func TestServerFenceOfAGrantThatHadToWait(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // it has been committed by then
	// What a grant does that has not committed yet.
	_, err = tx.ExecContext(t.Context(), s.fill(`SELECT pg_advisory_xact_lock(hashtextextended('k' COLLATE "C", '$T'::regclass::oid::bigint))`))
	require.NoError(t, err)

	got := make(chan loki.Grant, 1)
	go func() {
		g, err := s.Grant(t.Context(), s.Claim("k"))
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	require.Eventually(t, func() bool {
		var waiting int
		s.get(t, &waiting, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		return waiting > 0
	}, 10*time.Second, 5*time.Millisecond)
	var other int64
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&other))
	require.NoError(t, tx.Commit())

	g := <-got
	require.True(t, g.Held)
	require.Greater(t, g.Fence, other, "another claim had this fence, and was released before this one was granted")
}
