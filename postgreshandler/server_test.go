package postgreshandler_test

// This file is about what each operation does.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestServerGrantExtendReleaseInspect(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := s.claim("k"), s.claim("k")

	_, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.False(t, held)

	fence := s.mustGrant(t, a)
	require.Greater(t, fence, time.Now().Add(-time.Minute).UnixMicro(), "the clock in microseconds")
	by := s.mustBeBusy(t, b)
	require.Equal(t, a.Holder, by.ID)
	require.Equal(t, by.Since.Add(a.Expiry), by.Until)
	seen, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.True(t, held)
	require.LessOrEqual(t, seen.Left, by.Left)
	require.WithinRange(t, by.Until, by.Since.Add(by.Left), by.Since.Add(a.Expiry+time.Second))
	seen.Left = by.Left
	require.Equal(t, by, seen)

	a.Expiry = time.Hour
	s.mustExtend(t, a, true)
	longer, _, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.Equal(t, by.Since, longer.Since)
	require.WithinDuration(t, by.Until.Add(time.Hour-30*time.Second), longer.Until, 10*time.Second)
	a.Expiry = time.Minute
	require.Equal(t, fence, s.mustGrant(t, a), "the same claim keeps its fence")
	shorter, _, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.Equal(t, by.Since, shorter.Since, "and its date")
	require.Less(t, shorter.Until, longer.Until.Add(-50*time.Minute), "and its new expiry may be shorter")

	s.mustExtend(t, b, false)
	s.mustRelease(t, b) // releasing what is not held is no error
	s.mustBeBusy(t, b)

	s.mustRelease(t, a)
	s.mustRelease(t, a)
	require.Zero(t, s.rows(t), "nothing is left")
	s.mustExtend(t, a, false) // an extension never takes a lock anew
	require.Zero(t, s.rows(t))
	require.Greater(t, s.mustGrant(t, b), fence, "also across a release")
}

// A release reports whether its claim still held: not one that was released, replaced, forgotten, or had expired.
func TestReleaseReportsWhatItFound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	requireReleased := func(c loki.Claim, want bool) {
		t.Helper()
		held, err := s.ReleaseHeld(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, want, held)
	}
	a, b := s.claim("k"), s.claim("k")
	requireReleased(a, false)
	s.mustGrant(t, a)
	requireReleased(b, false)
	requireReleased(a, true)
	requireReleased(a, false)

	s.mustGrant(t, a)
	s.expire(t, a.Key)
	requireReleased(a, false)

	a.Fence = time.Now().Add(time.Hour).UnixMicro() // so that its row stays when it is released
	s.mustGrant(t, a)
	requireReleased(a, true)
	requireReleased(a, false)
	other := s.claim("another key")
	other.Repeated = true
	requireReleased(other, true) // another attempt may have done it
}

func TestServerExpiredClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := s.claim("k"), s.claim("k")
	fence := s.mustGrant(t, a)
	s.expire(t, a.Key)

	_, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.False(t, held, "an expired claim is held by nobody")
	s.mustExtend(t, a, false) // expired is over, also while nobody has taken the key

	again := s.mustGrant(t, a)
	require.Greater(t, again, fence, "a claim that comes back after its expiry is a new grant")
	s.expire(t, a.Key)
	taken := s.mustGrant(t, b)
	require.Greater(t, taken, again)
	require.Equal(t, b.Holder, s.mustBeBusy(t, a).ID)
	s.mustRelease(t, a) // too late
	s.mustBeBusy(t, a)
}

func TestServerSupersedes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dead, live := s.claim("k"), s.claim("k")
	fence := s.mustGrant(t, dead)
	live.Supersedes = "another token"
	s.mustBeBusy(t, live)
	live.Supersedes = dead.Token
	require.Greater(t, s.mustGrant(t, live), fence)
	require.Equal(t, live.Holder, s.mustBeBusy(t, dead).ID)
	s.mustGrant(t, live) // again, and still superseding
}

// Rows that expired are removed by releases of other keys, whatever those are, and those of live claims are not.
func TestServerExpiredRowsAreSwept(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const old = 300 // several pages
	live, fresh, ahead := s.claim("live"), s.claim("fresh"), s.claim("ahead")
	s.mustGrant(t, live)
	s.mustGrant(t, fresh)
	s.expire(t, fresh.Key)
	ahead.Fence = time.Now().Add(time.Hour).UnixMicro()
	s.mustGrant(t, ahead)
	s.exec(t, "UPDATE $T SET expires_at = expires_at - interval '1 hour' WHERE service_key = $1", ahead.Key)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '61 seconds', 1 FROM generate_series(1, $1) AS i`, old)
	c := s.claim("k")
	releases := 0
	for deadline := time.Now().Add(20 * time.Second); s.rows(t) > 3; releases++ {
		require.True(t, time.Now().Before(deadline), "%d rows are left", s.rows(t))
		s.mustGrant(t, c)
		before := s.rows(t)
		s.mustRelease(t, c)
		require.LessOrEqual(t, before-s.rows(t), 9, "a few at a time")
	}
	require.Less(t, releases, old, "more go than come")
	s.mustBeBusy(t, s.claim("live"))
	require.Greater(t, s.mustGrant(t, s.claim("ahead")), ahead.Fence, "a fence that the clock has not passed stays")
}

// What sweeping does in passing must not shut a gate that somebody waits at, or run the server out of locks.
func TestServerSweepingLocksWhatItRemovesAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `INSERT INTO $T SELECT 'live' || i, 't', 'h', now(), now() + interval '1 hour', 1 FROM generate_series(1, 60) AS i`)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '2 minutes', 1 FROM generate_series(1, 3) AS i`)
	s.exec(t, "ANALYZE $T") // so small a table is joined by reading all of it
	h, stub := newStub(t, always(answers["release"], nil), s.opts...)
	require.NoError(t, h.Release(t.Context(), claim))
	sent := stub.sent()[0]

	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // that is the end of it
	var gates int
	_, err = tx.ExecContext(t.Context(), sent.statement, sent.args...)
	require.NoError(t, err)
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").Scan(&gates))
	require.Equal(t, 4, gates, "its own, and one for each row that went")
}
