package mssqlhandler_test

// This file is about fences on a real server.

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestServerFences(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	future := time.Now().Add(1000 * time.Hour).UnixMicro()
	var clock int64
	s.get(t, &clock, "SELECT DATEDIFF_BIG(microsecond, '19700101', SYSUTCDATETIME())")
	a := s.claim("k")
	require.GreaterOrEqual(t, s.mustGrant(t, a), clock)

	a.Fence = future
	require.Equal(t, future, s.mustGrant(t, a), "raised to the floor")
	a.Fence = 1
	require.Equal(t, future, s.mustGrant(t, a), "and not lowered")
	a.Fence = future + 5
	held, err := s.Extend(t.Context(), a)
	require.NoError(t, err)
	require.True(t, held)

	s.expire(t, a.Key)
	require.Equal(t, future+6, s.mustGrant(t, s.claim("k")), "the last one plus one, where the clock is behind")
	s.exec(t, "UPDATE $T SET Fence = 1, ExpiresAt = SYSUTCDATETIME() WHERE ServiceKey = @p1", a.Key)
	require.GreaterOrEqual(t, s.mustGrant(t, s.claim("k")), clock, "the clock, where it is ahead")

	fresh := s.claim("fresh")
	fresh.Fence = future
	require.Equal(t, future, s.mustGrant(t, fresh), "the floor also counts for a key without a row")

	s.exec(t, "UPDATE $T SET Fence = 9223372036854775807, ExpiresAt = SYSUTCDATETIME() WHERE ServiceKey = @p1", a.Key)
	_, err = s.Grant(t.Context(), s.claim("k"))
	require.Error(t, err, "no fence is left")
	require.False(t, loki.IsUnavailable(err))
}

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

	a, b := s.claim("a"), s.claim("b")
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	fence := s.mustGrant(t, a)
	require.GreaterOrEqual(t, fence, a.Fence)
	release(a)
	again := s.mustGrant(t, s.claim("a"))
	require.Greater(t, again, fence)
	b.Fence = again + 1e6
	require.GreaterOrEqual(t, s.mustGrant(t, b), b.Fence)
	release(b)
	release(b)
	s.get(t, &rows, remembered)
	require.Equal(t, 1, rows)
	c := s.claim("b")
	require.Greater(t, s.mustGrant(t, c), b.Fence)
	release(c)
	require.Greater(t, s.mustGrant(t, s.claim("b")), b.Fence)

	d := s.claim("d")
	d.Fence = time.Now().Add(48 * time.Hour).UnixMicro()
	require.Equal(t, d.Fence, s.mustGrant(t, d))
	release(d)
	require.Less(t, s.mustGrant(t, s.claim("d")), d.Fence, "no clock is that wrong, and it would be a floor for every key")
}

// Each holder of one key gets a larger fence than every holder before, with releases and expiries in between.
func TestServerFencesGrowUnderContention(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var (
		wg     sync.WaitGroup
		fences []int64 // guarded by the lock under test
	)
	for range connections {
		wg.Go(func() {
			for range 40 {
				c := s.claim("k")
				g, err := s.Grant(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.Held {
					continue
				}
				fences = append(fences, g.Fence)
				if err := s.Release(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, fences)
	require.IsIncreasing(t, fences)
}

// The fence of a row is drawn before the row is there. Whoever was granted and released while the INSERT waited had a
// larger one, so it has to be drawn again.
func TestServerFenceOfAnInsertThatHadToWait(t *testing.T) {
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	warm := s.claim("warm") // so that the grant under test gets to its INSERT at once
	s.mustGrant(t, warm)
	require.NoError(t, s.Release(t.Context(), warm))
	c := s.claim("k")
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
