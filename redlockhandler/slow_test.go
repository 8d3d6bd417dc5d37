package redlockhandler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redlockhandler"
)

// What is waited for here would be waited for until the test's context ends, which is an error.
func TestWaitsForNobodyWhenAMajorityHasDecided(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithServerTimeout(never))
	q.gates[2].holdBefore()
	c := claim("k", time.Minute)
	q.mustHold(c)
	require.Equal(t, c.Holder, q.mustBeBusy(claim("k", time.Minute)).HeldBy.ID)
	require.True(t, q.extend(c))
	q.release(c)

	for _, f := range q.at[:2] { // "no" is decided, too
		f.mustHold(claim("k", time.Minute))
	}
	require.False(t, q.extend(c))
}

func TestReleasesWhatASlowServerGrantsLate(t *testing.T) {
	for when, hold := range map[string]func(*gate){
		"it gets the claim late":        (*gate).holdBefore,
		"it has the claim and is quiet": (*gate).holdAfter,
	} {
		t.Run(when, func(t *testing.T) {
			q := newQuorum(t, 3)
			slow := q.at[2]
			hold(q.gates[2])
			c := claim("k", time.Minute)
			q.mustHold(c)
			_, answered := q.gates[2].counts()
			if when == "it has the claim and is quiet" {
				slow.eventuallyHolds(c)
				answered = 1
			}
			q.release(c) // by the majority
			entered, _ := q.gates[2].counts()
			require.LessOrEqual(t, entered, 1, "the release overtook the lock")

			q.gates[2].open()
			require.Eventually(t, func() bool { _, n := q.gates[2].counts(); return n == 2 }, patience, time.Millisecond,
				"the lock and the release arrive, %d of them before", answered)
			q.nowhere()
		})
	}
}

func TestRollsBackWhatASlowServerGrantsLate(t *testing.T) {
	q := newQuorum(t, 3)
	holder, c := claim("k", time.Minute), claim("k", time.Minute)
	for _, f := range q.at[:2] {
		f.mustHold(holder)
	}
	q.gates[2].holdAfter()
	q.mustBeBusy(c)
	q.at[2].eventuallyHolds(c)
	q.gates[2].open()
	q.at[2].eventuallyEmpty()
}

func TestAsksNothingMoreOfAServerThatRefusedLate(t *testing.T) {
	q := newQuorum(t, 3)
	holder := claim("k", time.Minute)
	for _, f := range q.at {
		f.mustHold(holder)
	}
	q.gates[2].holdAfter()
	c := claim("k", time.Minute)
	q.mustBeBusy(c)
	q.gates[2].open()
	q.mustBeBusy(c) // goes behind whatever the first has left
	for _, g := range q.gates {
		require.Eventually(t, func() bool { _, n := g.counts(); return n >= 2 }, patience, time.Millisecond)
		entered, _ := g.counts()
		require.Equal(t, 2, entered, "two refusals, and no release")
	}
}

func TestWithAServerThatIsStopped(t *testing.T) {
	q := newQuorum(t, 3)
	stopped := q.at[2].server
	c := claim("k", time.Minute)
	stopped.Stop(t)
	q.mustHold(c)
	q.mustBeBusy(claim("k", time.Minute))
	require.True(t, q.extend(c))
	q.release(c)
	c = claim("k", time.Minute)
	q.mustHold(c)
	stopped.Cont(t)
	// What was sent first arrives first, and the second claim was refused there if the release had not come.
	require.Eventually(t, func() bool { return q.extend(c) && q.at[2].holds(c) }, patience, 10*time.Millisecond)

	stopped.Stop(t)
	q.release(c)
	stopped.Cont(t)
	q.nowhere()
}

func TestIsUnavailableWhenAMajorityIsStopped(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithServerTimeout(100*time.Millisecond))
	for _, f := range q.at[1:] {
		f.server.Stop(t)
	}
	c := claim("k", time.Minute)
	_, err := q.handler.Lock(q.context(), c)
	requireUnavailable(t, err, "no answer within ")
	require.Equal(t, []redlockhandler.Verdict{redlockhandler.VerdictGranted, redlockhandler.VerdictUnreachable, redlockhandler.VerdictUnreachable}, votes(t, err))
	for _, f := range q.at[1:] {
		f.server.Cont(t)
	}
	eventually(t, func() bool { return q.handler.Release(q.context(), c) == nil }, "as the Locker does after an error")
	q.nowhere()
}

// A client that heeds no deadline costs a goroutine and a connection for each call that is left behind.
func TestLeavesABoundedNumberOfCallsBehind(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithServerTimeout(20*time.Millisecond))
	q.gates[2].holdBefore()
	full := func() (held int) {
		for i := 0; ; i++ {
			before, _ := q.gates[2].counts()
			c := claim(fmt.Sprint("k", i), time.Minute)
			_, _ = q.handler.Lock(q.context(), c) // a slow machine may not grant it
			if held, _ = q.gates[2].counts(); held == before {
				return held
			}
			require.Less(t, held, 1000, "nothing bounds them")
		}
	}
	require.Eventually(t, func() bool {
		before := full()
		return before == full()
	}, patience, 10*time.Millisecond)

	q.gates[2].open()
	c := claim("k", time.Minute)
	require.Eventually(t, func() bool {
		c = claim("k", time.Minute)
		_, err := q.handler.Lock(q.context(), c)
		held := q.at[2].holds(c)
		return q.handler.Release(q.context(), c) == nil && err == nil && held
	}, patience, time.Millisecond, "a server that is back is asked again")
}

// The Locker releases a claim after every error. The votes may come later than that.
func TestReleaseGoesBehindVotesOfACallThatHasEnded(t *testing.T) {
	q := newQuorum(t, 3)
	for _, g := range q.gates[1:] {
		g.holdAfter()
	}
	ctx, cancel := context.WithCancel(q.context())
	c := claim("k", time.Minute)
	go func() {
		for !q.at[0].holds(c) || !q.at[1].holds(c) || !q.at[2].holds(c) {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err := q.handler.Lock(ctx, c)
	require.ErrorIs(t, err, context.Canceled)
	released := make(chan error, 1)
	go func() { released <- q.handler.Release(q.context(), c) }()
	for _, g := range q.gates {
		g.open()
	}
	require.NoError(t, <-released)
	q.nowhere()
}

// A claim that a server has just been asked to forget must not come back with a renewal that is late.
func TestReleaseGoesBehindARenewalThatHeals(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	q.mustHold(c)
	q.everywhere(c)
	q.at[2].do("FLUSHALL")
	q.gates[2].holdAfter()
	require.True(t, q.extend(c))
	q.release(c)
	q.gates[2].open()
	require.Eventually(t, func() bool { _, n := q.gates[2].counts(); return n == 4 }, patience, time.Millisecond,
		"lock, renewal, healing and release")
	q.nowhere()
}

// However many callers there are, a server that does not answer gets one vote at a time, so that there is little to roll back
// when it does.
func TestASilentServerGetsOneVoteAtATime(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithServerTimeout(100*time.Millisecond))
	for _, g := range q.gates[1:] {
		g.holdBefore()
	}
	entered := func() int { n, _ := q.gates[1].counts(); return n }
	_, err := q.handler.Lock(q.context(), claim("first", time.Minute))
	requireUnavailable(t, err, "no answer within ")
	require.Equal(t, 1, entered())
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { _, _ = q.handler.Lock(q.context(), claim(fmt.Sprint("k", i), time.Minute)) })
	}
	all.Wait()
	require.Less(t, entered(), 10, "on a slow machine the first of them may time out before the last begins")
}

// A release that has failed is repeated by its caller. It must not be sent as often as it was repeated once the server is back.
func TestAReleaseThatWasGivenUpIsNotSent(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithServerTimeout(50*time.Millisecond))
	c := claim("k", time.Minute)
	for _, g := range q.gates[1:] {
		g.holdBefore()
	}
	for range 10 {
		requireUnavailable(t, q.handler.Release(q.context(), c), "no answer within ")
	}
	for _, g := range q.gates[1:] {
		g.open()
	}
	require.Eventually(t, func() bool { return q.handler.Release(q.context(), c) == nil }, patience, time.Millisecond)
	entered, _ := q.gates[1].counts()
	require.Less(t, entered, 10, "one that was under way, and those since")
}
