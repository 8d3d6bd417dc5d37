package redlockhandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redlockhandler"
)

func TestHealsServersThatRestartedEmpty(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	q.mustHold(c)
	for _, f := range q.at { // one after the other: at the end none has what it was given first
		q.everywhere(c)
		f.server.Restart(t)
		require.Eventually(t, func() bool { return f.redis.Ping(t.Context()).Err() == nil }, patience, time.Millisecond)
		require.Empty(t, f.value("loki:{k}"))
		require.True(t, q.extend(c))
		f.eventuallyHolds(c)
		require.Greater(t, f.ttl("loki:{k}"), c.Expiry-patience)
	}
	q.release(c)
	q.nowhere()
}

func TestHealsNoServerThatHoldsForAnother(t *testing.T) {
	q := newQuorum(t, 3)
	c, other := claim("k", time.Minute), claim("k", time.Minute)
	q.mustHold(c)
	q.everywhere(c)
	q.at[2].do("FLUSHALL")
	q.at[2].mustHold(other)
	c.Supersedes = other.Token // which a renewal heeds as little as an Extend does
	for range 3 {              // the next one goes behind what the one before has done
		require.True(t, q.extend(c))
		require.True(t, q.at[2].holds(other))
	}
}

func TestHealsNobodyWhenTheMajorityIsGone(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	q.mustHold(c)
	q.everywhere(c)
	for _, f := range q.at[1:] {
		f.do("FLUSHALL")
	}
	for range 3 { // the next one would find what the one before had healed
		require.False(t, q.extend(c))
	}
	for _, f := range q.at[1:] {
		require.Empty(t, f.keys())
	}
	require.True(t, q.at[0].holds(c), "which is for the release")
	other := claim("k", time.Minute)
	q.mustHold(other)
	require.False(t, q.extend(c))
	q.release(c)
	require.False(t, q.extend(c))
	q.release(other)
	q.nowhere()
}

func TestHealsNobodyWhenAnotherHasTheMajority(t *testing.T) {
	q := newQuorum(t, 5)
	c, other := claim("k", time.Minute), claim("k", time.Minute)
	for _, f := range q.at[:2] {
		f.mustHold(c)
	}
	for _, f := range q.at[2:] {
		f.mustHold(other)
	}
	require.False(t, q.extend(c))
	q.at[4].do("FLUSHALL")
	require.False(t, q.extend(c))
	require.False(t, q.extend(c))
	require.Empty(t, q.at[4].keys())
}

// Two servers renewed the claim, two have lost it and one is silent: it may hold, or not.
func TestDoesNotKnowWhetherAClaimHolds(t *testing.T) {
	q := newQuorum(t, 5)
	c := claim("k", time.Minute)
	q.mustHold(c)
	q.everywhere(c)
	for _, f := range q.at[2:4] {
		f.do("FLUSHALL")
	}
	q.at[4].server.Kill()
	_, err := q.handler.Extend(q.context(), c)
	requireUnavailable(t, err, "no majority for the extend of \"k\"")
	require.Equal(t, []redlockhandler.Verdict{granted, granted, notHeld, notHeld, unreachable}, votes(t, err))
	for _, f := range q.at[2:4] {
		require.Empty(t, f.keys(), "nobody is healed")
	}
}

// The votes came one by one, and the first was over when the last one came: there was no moment with a majority.
func TestGrantsNothingThatIsHalfOver(t *testing.T) {
	q := newQuorum(t, 3)
	for _, g := range q.gates[1:] {
		g.holdAfter()
	}
	c := claim("k", 400*time.Millisecond)
	go func() {
		for !q.at[1].holds(c) || !q.at[2].holds(c) {
			time.Sleep(time.Millisecond)
		}
		for q.at[1].ttl("loki:{k}") > c.Expiry/2-50*time.Millisecond {
			time.Sleep(time.Millisecond)
		}
		for _, g := range q.gates {
			g.open()
		}
	}()
	q.mustHold(c)
	require.Greater(t, q.at[0].ttl("loki:{k}"), time.Duration(0))
	entered, _ := q.gates[0].counts()
	require.Equal(t, 3, entered, "the lock, its release, and the lock again")
}
