package redlockhandler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redlockhandler"
)

func TestTellsOfAReleaseWithAMinorityDown(t *testing.T) {
	q := newQuorum(t, 3)
	q.at[2].server.Kill()
	told, err := q.handler.Notify(t.Context(), "k")
	require.NoError(t, err)
	c := claim("k", time.Minute)
	q.mustHold(c)
	q.release(c)
	requireTold(t, told)
}

func TestListensToAServerThatComesBack(t *testing.T) {
	q := newQuorum(t, 3)
	q.at[2].server.Kill()
	told, err := q.handler.Notify(t.Context(), "k")
	require.NoError(t, err)
	q.at[2].server.Restart(t)
	requireTold(t, told) // something may have been missed
	c := claim("k", time.Minute)
	eventually(t, func() bool { return q.at[2].redis.Ping(t.Context()).Err() == nil }, "the server is back")
	q.at[2].mustHold(c)
	q.at[2].release(c)
	requireTold(t, told)
}

func TestClosesTheChannelWhenNoMajorityCanBeListenedTo(t *testing.T) {
	q := newQuorum(t, 3)
	told, err := q.handler.Notify(t.Context(), "k")
	require.NoError(t, err)
	for i, f := range q.at[:2] {
		eventually(t, func() bool {
			subscribers, _ := f.redis.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
			return subscribers != ""
		}, "it is listened to: Notify waits for a majority only")
		require.NoError(t, q.gates[i].Close()) // which go-redis notices when it wants to connect again
		f.do("CLIENT", "KILL", "TYPE", "pubsub")
	}
	requireTold(t, told) // with one less something may have been missed
	eventually(t, func() bool {
		select {
		case _, open := <-told:
			return !open
		default:
			return false
		}
	}, "the channel is closed")
}

// deaf is a client that cannot subscribe.
type deaf struct{ redlockhandler.Client }

func TestHandlerOfClientsThatCannotSubscribe(t *testing.T) {
	q := newQuorum(t, 3)
	clients := []redlockhandler.Client{deaf{q.gates[0]}, q.gates[1], q.gates[2]}
	_, err := redlockhandler.New(clients).Notify(t.Context(), "k")
	require.NoError(t, err, "two can")
	clients[1] = deaf{q.gates[1]}
	_, err = redlockhandler.New(clients).Notify(t.Context(), "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// A vote that is rolled back frees nothing, and waiters that woke each other with theirs would never rest.
func TestTellsNobodyOfAVoteTakenBack(t *testing.T) {
	q := newQuorum(t, 3)
	holder, c := claim("k", time.Minute), claim("k", time.Minute)
	for _, f := range q.at[:2] {
		f.mustHold(holder)
	}
	recorder := q.at[2].server.Record(t)
	published := func() (n int) {
		for _, command := range recorder.Scripted(t) {
			if command.Name() == "publish" {
				n++
			}
		}
		return n
	}
	q.mustBeBusy(c)
	require.Eventually(t, func() bool { _, n := q.gates[2].counts(); return n == 2 }, patience, time.Millisecond, "the vote and its release")
	q.at[2].eventuallyEmpty()
	require.Zero(t, published())

	for _, f := range q.at[:2] {
		f.release(holder)
	}
	q.mustHold(c)
	q.everywhere(c)
	q.release(c)
	q.nowhere()
	require.Equal(t, 1, published(), "a release does")
}
