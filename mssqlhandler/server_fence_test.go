package mssqlhandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// A floor that is ahead of the server's clock counts for every later claim, although the row of its claim is gone. What
// is remembered for that is one row, for all keys.
func TestServerFenceAheadOfTheClockIsRemembered(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	release := func(c loki.Claim) {
		t.Helper()
		require.NoError(t, s.Release(t.Context(), c))
	}
	var rows int
	const remembered = "SELECT COUNT(*) FROM $T WHERE ServiceKey LIKE N'fence_'"

	a, b := s.Claim("a"), s.Claim("b")
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	fence := s.MustGrant(t, a)
	require.GreaterOrEqual(t, fence, a.Fence)
	release(a)
	again := s.MustGrant(t, s.Claim("a"))
	require.Greater(t, again, fence)
	b.Fence = again + 1e6
	require.GreaterOrEqual(t, s.MustGrant(t, b), b.Fence)
	release(b)
	release(b)
	s.get(t, &rows, remembered)
	require.Equal(t, 1, rows)
	c := s.Claim("b")
	require.Greater(t, s.MustGrant(t, c), b.Fence)
	release(c)
	require.Greater(t, s.MustGrant(t, s.Claim("b")), b.Fence)

	d := s.Claim("d")
	d.Fence = time.Now().Add(48 * time.Hour).UnixMicro()
	require.Equal(t, d.Fence, s.MustGrant(t, d))
	release(d)
	require.Less(t, s.MustGrant(t, s.Claim("d")), d.Fence, "no clock is that wrong, and it would be a floor for every key")
}

// The fence of a row is drawn before the row is there. Whoever was granted and released while the INSERT waited had a
// larger one, so it has to be drawn again.
func TestServerFenceOfAnInsertThatHadToWait(t *testing.T) {
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	warm := s.Claim("warm") // so that the grant under test gets to its INSERT at once
	s.MustGrant(t, warm)
	require.NoError(t, s.Release(t.Context(), warm))
	c := s.Claim("k")
	tx, err := shared.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // it has been committed by then
	_, err = tx.ExecContext(t.Context(), s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETUTCDATE())"), c.Key)
	require.NoError(t, err)

	got := make(chan loki.Grant, 1)
	go func() {
		g, err := s.Grant(t.Context(), c)
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	select {
	case <-got:
		t.Fatal("the grant did not wait for the row")
	case <-time.After(500 * time.Millisecond): // if its INSERT has not begun by then, the test passes for nothing
	}
	var other int64
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT DATEDIFF_BIG(microsecond, '19700101', SYSUTCDATETIME())").Scan(&other))
	_, err = tx.ExecContext(t.Context(), s.on("DELETE FROM $T WHERE ServiceKey = @p1"), c.Key)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())

	g := <-got
	require.True(t, g.Held)
	require.Greater(t, g.Fence, other, "another claim had this fence, and was released before this one was granted")
}
