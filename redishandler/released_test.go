package redishandler_test

// This file is the memory of the token last released.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReleasedTokenIsRemembered(t *testing.T) {
	f := newFixture(t)
	a, b, c := mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute))
	require.Empty(t, f.mustHold(a).Released)
	f.release(a)
	require.Equal(t, a.Token, f.mustHold(b).Released)
	require.Equal(t, a.Token, f.mustHold(b).Released, "a repeated claim is told again: the first answer may be lost")
	require.Equal(t, a.Token, f.mustBeBusy(c).Released)
	f.release(b)
	f.release(b)
	require.Equal(t, b.Token, f.mustHold(c).Released)
}

func TestReleasedTokenIsForgottenAfterTheClaimsExpiry(t *testing.T) {
	f := newFixture(t)
	a, b := mirrored(claim("k", time.Minute)), claim("k", time.Minute)
	f.mustHold(a)
	a.Expiry = 50 * time.Millisecond
	released := time.Now()
	f.release(a)
	g := f.mustHold(b)
	require.True(t, g.Released == a.Token || time.Since(released) >= a.Expiry)
	require.Eventually(t, func() bool { return f.mustHold(b).Released == "" }, patience, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(released), a.Expiry-time.Millisecond)
}

// An unmirrored claim leaves no record in another store, so only the mirrored one's before it can be stale.
func TestReleaseOfUnmirroredKeepsWhatIsRemembered(t *testing.T) {
	f := newFixture(t)
	a, b := mirrored(claim("k", time.Hour)), claim("k", time.Minute)
	f.mustHold(a)
	f.release(a)
	f.mustHold(b)
	f.release(b)
	require.Equal(t, a.Token, f.mustHold(claim("k", time.Minute)).Released)
}

func TestOnlyAHolderIsRemembered(t *testing.T) {
	f := newFixture(t)
	a, b := mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute))
	f.release(a)
	require.Empty(t, f.keys())
	f.mustHold(b)
	f.release(a)
	require.Empty(t, f.mustHold(b).Released)
}

// A command that lands late can bring a released claim back.
func TestATokenThatHoldsAgainIsNotReleased(t *testing.T) {
	f := newFixture(t)
	a := mirrored(claim("k", time.Minute))
	f.mustHold(a)
	f.release(a)
	require.Empty(t, f.mustHold(a).Released)
	require.Empty(t, f.mustBeBusy(claim("k", time.Minute)).Released)
}

func TestReleasedTokenOutlivesItsExtension(t *testing.T) {
	f := newFixture(t)
	a, b := mirrored(claim("k", 48*time.Hour)), claim("k", time.Minute)
	f.mustHold(a)
	f.release(a)
	f.mustHold(b)
	require.True(t, f.extend(b))
	f.requireTTL("loki:{k}:fence", 48*time.Hour)
	f.release(b)
	f.requireTTL("loki:{k}:fence", 48*time.Hour)
	require.Equal(t, a.Token, f.mustHold(b).Released)
}
