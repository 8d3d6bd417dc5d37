package postgreshandler_test

// This file is about fences.

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
	clock := func() (now int64) {
		s.get(t, &now, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
		return now
	}
	before := clock()
	a := s.claim("k")
	fence := s.mustGrant(t, a)
	require.GreaterOrEqual(t, fence, before)
	require.LessOrEqual(t, fence, clock())

	a.Fence = future
	require.Equal(t, future, s.mustGrant(t, a), "raised to the floor")
	a.Fence = 1
	require.Equal(t, future, s.mustGrant(t, a), "and not lowered")
	a.Fence = future + 5
	s.mustExtend(t, a, true)

	s.expire(t, a.Key)
	require.Equal(t, future+6, s.mustGrant(t, s.claim("k")), "the last one plus one, where the clock is behind")
	s.exec(t, "UPDATE $T SET fence = 1, expires_at = clock_timestamp()")
	require.GreaterOrEqual(t, s.mustGrant(t, s.claim("k")), before, "the clock, where it is ahead")

	fresh := s.claim("fresh")
	fresh.Fence = future
	require.Equal(t, future, s.mustGrant(t, fresh), "the floor also counts for a key without a row")

	s.exec(t, "UPDATE $T SET fence = 9223372036854775807, expires_at = clock_timestamp()")
	_, err := s.Grant(t.Context(), s.claim("k"))
	require.ErrorContains(t, err, "no fence is left")
	require.False(t, loki.IsUnavailable(err))
}

// A floor that is ahead of the server's clock counts for later claims, although the claim that brought it is gone. What is
// remembered for that goes when the clock has passed it.
func TestServerFenceAheadOfTheClockIsRemembered(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := s.claim("a"), s.claim("b")
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	fence := s.mustGrant(t, a)
	require.Equal(t, a.Fence, fence)
	s.mustRelease(t, a)
	_, held, err := s.Inspect(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, held)
	s.mustExtend(t, a, false)
	c := s.claim("a")
	require.Equal(t, fence+1, s.mustGrant(t, c))
	s.mustRelease(t, c)
	require.Equal(t, 1, s.rows(t))

	s.mustGrant(t, b)
	s.mustRelease(t, b)
	require.Equal(t, 1, s.rows(t), "it is of one key alone")
	s.exec(t, "UPDATE $T SET fence = 1, expires_at = expires_at - interval '1 minute'") // time goes by
	s.mustRelease(t, b)
	require.Zero(t, s.rows(t))
}

// Each holder of one key gets a larger fence than every holder before, with releases in between that take the row away.
func TestServerFencesGrowUnderContention(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var (
		wg     sync.WaitGroup
		fences []int64 // guarded by the lock under test
	)
	for range connections {
		wg.Go(func() {
			for range 150 {
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
		g, err := s.Grant(t.Context(), s.claim("k"))
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
