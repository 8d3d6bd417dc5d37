package mssqlhandler_test

// This file is about a real T-SQL server: what each operation does.

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
	require.Greater(t, fence, time.Now().Add(-time.Minute).UnixMicro(), "the clock in microseconds, or what is remembered")
	by := s.mustBeBusy(t, b)
	require.Equal(t, a.Holder, by.ID)
	require.WithinDuration(t, by.Since.Add(a.Expiry), by.Until, time.Second)
	seen, held, err := s.Inspect(t.Context(), a.Key)
	require.NoError(t, err)
	require.True(t, held)
	require.LessOrEqual(t, seen.Left, by.Left)
	require.WithinRange(t, by.Until, by.Since.Add(by.Left), by.Since.Add(a.Expiry+time.Second))
	seen.Left = by.Left
	require.Equal(t, by, seen)

	a.Expiry = time.Hour
	held, err = s.Extend(t.Context(), a)
	require.NoError(t, err)
	require.True(t, held)
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

	held, err = s.Extend(t.Context(), b)
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, s.Release(t.Context(), b), "releasing what is not held is no error")
	s.mustBeBusy(t, b)

	require.NoError(t, s.Release(t.Context(), a))
	require.NoError(t, s.Release(t.Context(), a))
	require.Zero(t, s.rows(t), "nothing is left")
	held, err = s.Extend(t.Context(), a)
	require.NoError(t, err)
	require.False(t, held, "an extension never takes a lock anew")
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
	held, err = s.Extend(t.Context(), a)
	require.NoError(t, err)
	require.False(t, held, "expired is over, also while nobody has taken the key")

	again := s.mustGrant(t, a)
	require.Greater(t, again, fence, "a claim that comes back after its expiry is a new grant")
	s.expire(t, a.Key)
	taken := s.mustGrant(t, b)
	require.Greater(t, taken, again)
	require.Equal(t, b.Holder, s.mustBeBusy(t, a).ID)
	require.NoError(t, s.Release(t.Context(), a), "too late")
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
}
