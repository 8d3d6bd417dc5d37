package sqltest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func testEachOperation(t *testing.T, s *Store) {
	a, b := s.Claim("k"), s.Claim("k")

	_, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.False(t, held)

	const rounding = 10 * time.Millisecond // of the date of a grant, which a store may draw later than the expiry
	before := time.UnixMicro(s.clock(t))
	fence := s.MustGrant(t, a)
	after := time.UnixMicro(s.clock(t))
	require.Greater(t, fence, time.Now().Add(-time.Minute).UnixMicro(), "the clock in microseconds, or what is remembered")
	by := s.MustBeBusy(t, b)
	require.Equal(t, a.Holder, by.ID)
	require.WithinRange(t, by.Since, before.Add(-rounding), after.Add(rounding))
	require.WithinRange(t, by.Until, before.Add(a.Expiry), after.Add(a.Expiry))
	seen, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.True(t, held)
	require.LessOrEqual(t, seen.Left, by.Left)
	require.WithinRange(t, by.Until, by.Since.Add(by.Left), by.Since.Add(a.Expiry+time.Second))
	seen.Left = by.Left
	require.Equal(t, by, seen)

	a.Expiry = time.Hour
	s.MustExtend(t, a, true)
	longer, _, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.Equal(t, by.Since, longer.Since)
	require.WithinDuration(t, by.Until.Add(time.Hour-30*time.Second), longer.Until, 10*time.Second)
	a.Expiry = time.Minute
	require.Equal(t, fence, s.MustGrant(t, a), "the same claim keeps its fencing token")
	shorter, _, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.Equal(t, by.Since, shorter.Since, "and its date")
	require.Less(t, shorter.Until, longer.Until.Add(-50*time.Minute), "and its new expiry may be shorter")

	s.MustExtend(t, b, false)
	s.MustRelease(t, b) // releasing what is not held is no error
	s.MustBeBusy(t, b)

	s.MustRelease(t, a)
	s.MustRelease(t, a)
	require.Zero(t, s.Count(t), "nothing is left")
	s.MustExtend(t, a, false) // an extension never acquires
	require.Zero(t, s.Count(t))
	require.Greater(t, s.MustGrant(t, b), fence, "also across a release")
}

// A release reports whether its claim still held: not one that was released, replaced, forgotten, or had expired.
func testReleaseReportsWhatItFound(t *testing.T, s *Store) {
	requireReleased := func(c loki.Claim, want bool) {
		t.Helper()
		held, err := s.ReleaseHeld(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, want, held)
	}
	a, b := s.Claim("k"), s.Claim("k")
	requireReleased(a, false)
	s.MustGrant(t, a)
	requireReleased(b, false)
	requireReleased(a, true)
	requireReleased(a, false)

	s.MustGrant(t, a)
	s.End(t, a.Key)
	requireReleased(a, false)

	a.Fence = time.Now().Add(time.Hour).UnixMicro() // a store may keep its row then
	s.MustGrant(t, a)
	requireReleased(a, true)
	requireReleased(a, false)
	other := s.Claim("another key")
	other.Repeated = true
	requireReleased(other, true) // another attempt may have done it
}

func testExpiredClaimsAreOver(t *testing.T, s *Store) {
	a, b := s.Claim("k"), s.Claim("k")
	fence := s.MustGrant(t, a)
	s.End(t, a.Key)

	_, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.False(t, held, "an expired claim holds nothing")
	s.MustExtend(t, a, false) // also while the key is free

	again := s.MustGrant(t, a)
	require.Greater(t, again, fence, "a claim that comes back after its expiry is a new grant")
	s.End(t, a.Key)
	taken := s.MustGrant(t, b)
	require.Greater(t, taken, again)
	require.Equal(t, b.Holder, s.MustBeBusy(t, a).ID)
	s.MustRelease(t, a) // too late
	s.MustBeBusy(t, a)
}

func testSupersededClaimsAreReplaced(t *testing.T, s *Store) {
	dead, live := s.Claim("k"), s.Claim("k")
	fence := s.MustGrant(t, dead)
	live.Supersedes = "another token"
	s.MustBeBusy(t, live)
	live.Supersedes = dead.Token
	granted := s.MustGrant(t, live)
	require.Greater(t, granted, fence)
	require.Equal(t, live.Holder, s.MustBeBusy(t, dead).ID)
	require.Equal(t, granted, s.MustGrant(t, live), "again, and still superseding")
}

// Read from the server's own clock, before and after each grant and renewal.
func testExpiryIsByTheServersClock(t *testing.T, s *Store) {
	for _, expiry := range []time.Duration{
		time.Millisecond, time.Millisecond + 1, 20 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond,
		15 * time.Second, 90 * time.Minute, 36 * time.Hour, 25 * 24 * time.Hour, loki.MaxExpiry,
	} {
		c := s.Claim("k" + expiry.String())
		c.Expiry = expiry
		kept := (expiry + time.Millisecond - 1).Truncate(time.Millisecond).Microseconds()
		check := func(ask func()) {
			t.Helper()
			before := s.clock(t)
			ask()
			after := s.clock(t)
			var until int64
			s.Get(t, &until, s.Until, c.Key)
			require.GreaterOrEqual(t, until, before+kept, "%v: at least the expiry", expiry)
			require.LessOrEqual(t, until, after+kept, "%v: not more than the expiry", expiry)
		}
		check(func() { s.MustGrant(t, c) })
		if expiry < time.Second {
			continue // it may be over by now
		}
		check(func() { s.MustExtend(t, c, true) })
		check(func() { s.MustGrant(t, c) })
	}
}

func testExpiryEnds(t *testing.T, s *Store) {
	c := s.Claim("k")
	c.Expiry = 300 * time.Millisecond
	begun := time.Now()
	s.MustGrant(t, c)
	for {
		held, err := s.Lock(t.Context(), s.Claim("k"))
		require.NoError(t, err)
		if held {
			break
		}
		require.Less(t, time.Since(begun), time.Minute)
	}
	require.GreaterOrEqual(t, time.Since(begun), c.Expiry)
}
