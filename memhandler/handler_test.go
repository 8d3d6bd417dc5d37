package memhandler_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

func claim(token string) loki.Claim {
	return loki.Claim{Key: "k", Token: token, Expiry: time.Minute, Holder: "holder of " + token}
}

func grant(t *testing.T, h *memhandler.Handler, c loki.Claim) loki.Grant {
	t.Helper()
	g, err := h.Grant(t.Context(), c)
	require.NoError(t, err)
	return g
}

func release(t *testing.T, h *memhandler.Handler, c loki.Claim) {
	t.Helper()
	require.NoError(t, h.Release(t.Context(), c))
}

func TestExpiryIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		c := claim("a")
		c.Expiry = 1500*time.Millisecond + 1 // rounded up
		require.True(t, grant(t, h, c).Held)
		time.Sleep(1501*time.Millisecond - 1)
		require.False(t, grant(t, h, claim("b")).Held)
		require.Equal(t, []string{"k"}, h.HeldKeys())
		held, err := h.Extend(t.Context(), c)
		require.NoError(t, err)
		require.True(t, held)

		time.Sleep(1501 * time.Millisecond)
		require.Empty(t, h.HeldKeys(), "nobody has to ask for a claim to be over")
		held, err = h.Extend(t.Context(), c)
		require.NoError(t, err)
		require.False(t, held)
		require.True(t, grant(t, h, claim("b")).Held)
	})
}

func TestHoldersTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		start := time.Now().Round(0)
		grant(t, h, claim("a"))
		time.Sleep(10 * time.Second)
		grant(t, h, claim("a"))
		time.Sleep(5 * time.Second)
		want := loki.Holder{ID: "holder of a", Since: start, Until: start.Add(70 * time.Second), Left: 55 * time.Second}
		got, held, err := h.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, want, got)
		require.Equal(t, want, grant(t, h, claim("b")).HeldBy)
	})
}

func TestHoldersTimesAreWallTimes(t *testing.T) { // outside a bubble, where times have a monotonic reading
	h := memhandler.New()
	grant(t, h, claim("a"))
	got := grant(t, h, claim("b")).HeldBy
	require.Equal(t, got.Since.Round(0), got.Since)
	require.Equal(t, got.Until.Round(0), got.Until)
}

func TestFenceIsTheClockOrMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		first := grant(t, h, claim("a")).Fence
		require.Equal(t, time.Now().UnixMicro(), first)
		release(t, h, claim("a"))
		require.Equal(t, first+1, grant(t, h, claim("b")).Fence, "the clock has not moved")
		release(t, h, claim("b"))
		time.Sleep(time.Second)
		require.Equal(t, first+1e6, grant(t, h, claim("c")).Fence)

		raised := claim("c")
		raised.Fence = first + 5e6
		require.Equal(t, raised.Fence, grant(t, h, raised).Fence, "a claim that is granted again brings a larger floor")
		raised.Fence = first
		require.Equal(t, first+5e6, grant(t, h, raised).Fence, "and a lower one")
		release(t, h, raised)
		require.Equal(t, first+5e6+1, grant(t, h, claim("d")).Fence)

		raised = claim("d")
		raised.Fence = first + 9e6
		held, err := h.Extend(t.Context(), raised)
		require.NoError(t, err)
		require.True(t, held)
		release(t, h, raised)
		require.Equal(t, first+9e6+1, grant(t, h, claim("e")).Fence, "Extend brings a floor, too")
	})
}

func TestAClaimThatComesBackAfterItsExpiryIsANewGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		first := grant(t, h, claim("a"))
		time.Sleep(time.Minute)
		again := grant(t, h, claim("a"))
		require.True(t, again.Held)
		require.Greater(t, again.Fence, first.Fence)
	})
}

func TestFenceIsRememberedForADay(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *memhandler.Handler, loki.Claim){
		"release": release,
		"expiry":  func(_ *testing.T, _ *memhandler.Handler, c loki.Claim) { time.Sleep(c.Expiry) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := memhandler.New()
				far := claim("a")
				far.Fence = time.Now().Add(90 * 24 * time.Hour).UnixMicro()
				require.Equal(t, far.Fence, grant(t, h, far).Fence)
				end(t, h, far)

				time.Sleep(memhandler.RememberFor - 1)
				next := claim("b")
				require.Equal(t, far.Fence+1, grant(t, h, next).Fence)
				end(t, h, next)
				time.Sleep(memhandler.RememberFor)
				require.Equal(t, time.Now().UnixMicro(), grant(t, h, claim("c")).Fence, "forgotten")
			})
		})
	}
}

func TestReleasedIsRememberedForTheExpiryOfAMirroredClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		mirrored := claim("a")
		mirrored.Mirrored = true
		mirrored.Expiry = 3 * memhandler.RememberFor // longer than anything else is remembered
		grant(t, h, mirrored)
		release(t, h, mirrored)

		time.Sleep(mirrored.Expiry - 1)
		require.Equal(t, "a", grant(t, h, claim("b")).Released)
		require.Equal(t, "a", grant(t, h, claim("c")).Released, "the refused are told, too")
		release(t, h, claim("b")) // not mirrored: not worth remembering
		require.Equal(t, "a", grant(t, h, claim("c")).Released)
		time.Sleep(time.Nanosecond)
		require.Empty(t, grant(t, h, claim("c")).Released)
	})
}

func TestWhatCannotBeRecordedIsRefused(t *testing.T) {
	for want, change := range map[string]func(*loki.Claim){
		"has no key":          func(c *loki.Claim) { c.Key = "" },
		"has no token":        func(c *loki.Claim) { c.Token = "" },
		"is 0s, it must be":   func(c *loki.Claim) { c.Expiry = 0 },
		"is -1ns, it must be": func(c *loki.Claim) { c.Expiry = -1 },
	} {
		t.Run(want, func(t *testing.T) {
			h := memhandler.New()
			c := claim("a")
			change(&c)
			held, err := h.Lock(t.Context(), c)
			require.ErrorContains(t, err, want)
			require.False(t, loki.IsUnavailable(err), "somebody's mistake")
			require.False(t, held)
			_, err = h.Extend(t.Context(), c)
			require.ErrorContains(t, err, want)
			require.NoError(t, h.Release(t.Context(), c))
			require.Empty(t, h.HeldKeys())
		})
	}
}

func TestTheLargestFenceIsTheLast(t *testing.T) {
	h := memhandler.New()
	c := claim("a")
	c.Fence = math.MaxInt64
	require.EqualValues(t, math.MaxInt64, grant(t, h, c).Fence)
	require.EqualValues(t, math.MaxInt64, grant(t, h, c).Fence)
	release(t, h, c)
	_, err := h.Lock(t.Context(), claim("b"))
	require.ErrorContains(t, err, `no fence is left for the key "k"`)
	require.Empty(t, h.HeldKeys())
}

func TestTheLongestExpiryDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		c := claim("a")
		c.Expiry = math.MaxInt64
		require.True(t, grant(t, h, c).Held)
		time.Sleep(24 * time.Hour)
		require.False(t, grant(t, h, claim("b")).Held)
	})
}

func TestZeroValueIsReady(t *testing.T) {
	var h memhandler.Handler
	release(t, &h, claim("a"))
	_, held, err := h.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, held)
	require.True(t, grant(t, &h, claim("a")).Held)
}

func TestEndedContextChangesNothing(t *testing.T) {
	h := memhandler.New()
	grant(t, h, claim("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Release(ctx, claim("a")), context.Canceled)
	_, _, err := h.Inspect(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	_, err = h.Extend(ctx, claim("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"k"}, h.HeldKeys())
}

func TestHeldKeysAreSorted(t *testing.T) {
	h := memhandler.New()
	for _, key := range []string{"b", "c", "a"} {
		c := claim("t")
		c.Key = key
		grant(t, h, c)
	}
	require.Equal(t, []string{"a", "b", "c"}, h.HeldKeys())
}

func TestNothingRuns(t *testing.T) {
	before := runtime.NumGoroutine()
	h := memhandler.New()
	for i := range 1000 {
		c := claim("t")
		c.Key = fmt.Sprint(i)
		grant(t, h, c)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}
