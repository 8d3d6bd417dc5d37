package redishandler_test

// This file is the order of fences, whatever happens to the server.

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

func TestFenceIsTheServersClockInMicroseconds(t *testing.T) {
	f := newFixture(t)
	require.Eventually(t, func() bool {
		before := time.Now().UnixMicro() // one machine, one clock
		c := claim("k", time.Minute)
		fence := f.mustHold(c).Fence
		require.GreaterOrEqual(t, fence, before)
		require.LessOrEqual(t, fence, time.Now().UnixMicro())
		f.release(c)
		return fence%1e6 < 1e5 // the first tenth of a second, where zeros are easily lost
	}, patience, 5*time.Millisecond)
}

func TestFenceGrows(t *testing.T) {
	f := newFixture(t)
	last := int64(0)
	grows := func(c loki.Claim, when string) {
		t.Helper()
		var g loki.Grant
		require.Eventually(t, func() bool { // the claim before may have to expire
			g = f.grant(c)
			return g.Held
		}, patience, time.Millisecond, when)
		require.Greater(t, g.Fence, last, when)
		last = g.Fence
	}
	for range 50 {
		a, b := claim("k", time.Minute), claim("k", time.Minute)
		grows(a, "after a release")
		b.Supersedes = a.Token
		grows(b, "superseding")
		f.release(b)
	}
	grows(claim("k", 20*time.Millisecond), "after a release")
	grows(claim("k", time.Minute), "after expiry")
	f.do("FLUSHALL")
	grows(claim("k", time.Minute), "after FLUSHALL")
	f.server.Restart(t)
	grows(claim("k", time.Minute), "after an empty restart")
}

// The clock of the server cannot be set back here. A companion that is ahead of it is the same.
func TestFenceGrowsWhenTheClockIsBehind(t *testing.T) {
	f := newFixture(t)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	f.do("SET", "loki:{k}:fence", ahead, "PX", 60000)
	for i := range int64(12) {
		c := claim("k", time.Minute)
		require.Equal(t, ahead+1+i, f.mustHold(c).Fence)
		f.release(c)
	}
}

func TestFenceIsTheSameForTheSameClaim(t *testing.T) {
	f := newFixture(t)
	c := claim("k", time.Minute)
	fence := f.mustHold(c).Fence
	f.mustBeBusy(claim("k", time.Minute))
	require.Equal(t, fence, f.mustHold(c).Fence)
	require.True(t, f.extend(c))
	c.Fence = fence
	require.Equal(t, fence, f.mustHold(c).Fence)

	c.Fence = fence + 5 // another store issued a larger one meanwhile
	require.Equal(t, c.Fence, f.mustHold(c).Fence)
	c.Fence = 0
	require.Equal(t, fence+5, f.mustHold(c).Fence)
	f.release(c)
	require.Equal(t, fmt.Sprint(fence+5), f.value("loki:{k}:fence"))
}

func TestARaisedFenceDoesNotChangeWhenTheClaimBegan(t *testing.T) {
	f := newFixture(t)
	c := claim("k", time.Minute)
	f.do("SET", "loki:{k}", c.Token+" 5 1000 "+c.Holder, "PX", 60000)
	c.Fence = 7
	require.EqualValues(t, 7, f.mustHold(c).Fence)
	require.Equal(t, c.Token+" 7 1000 "+c.Holder, f.value("loki:{k}"))
}

func TestFenceSurvivesALostCompanion(t *testing.T) {
	f := newFixture(t)
	a := claim("k", time.Minute)
	a.Fence = time.Now().Add(time.Hour).UnixMicro()
	f.mustHold(a)
	f.do("DEL", "loki:{k}:fence")

	b := claim("k", time.Minute)
	b.Supersedes = a.Token
	require.Equal(t, a.Fence+1, f.mustHold(b).Fence)
}

// Lua's numbers are exact up to 2^53: a larger token could be issued twice.
func TestFenceBeyondWhatCanBeCountedIsRefused(t *testing.T) {
	f := newFixture(t)
	const largest = 1<<53 - 1
	a := claim("k", time.Minute)
	a.Fence = largest
	require.EqualValues(t, largest, f.mustHold(a).Fence)
	require.EqualValues(t, largest, f.mustHold(a).Fence)
	f.release(a)
	_, err := f.handler.Grant(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "beyond 2^53")
	require.Equal(t, []string{"loki:{k}:fence"}, f.keys(), "nothing was recorded")

	f.do("DEL", "loki:{k}:fence")
	for _, floor := range []int64{largest + 1, math.MaxInt64} {
		a = claim("k", time.Minute)
		a.Fence = floor
		_, err = f.handler.Grant(t.Context(), a)
		requireMistake(t, err, "beyond 2^53")
		require.Empty(t, f.keys(), "nothing was recorded")
	}
}

func TestFenceTTL(t *testing.T) {
	f := newFixture(t, redishandler.WithFenceTTL(1500*time.Microsecond+time.Second))
	c := claim("k", time.Minute)
	f.mustHold(c)
	require.Greater(t, f.ttl("loki:{k}:fence"), time.Minute)
	f.release(c)
	require.LessOrEqual(t, f.ttl("loki:{k}:fence"), 1002*time.Millisecond)

	c = mirrored(c) // it has to be remembered for longer than its fence
	f.mustHold(c)
	f.release(c)
	require.Greater(t, f.ttl("loki:{k}:fence"), 59*time.Second)
}
