package redlockhandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of two with as many votes the smaller token keeps its own: if both gave theirs back they would meet again.
func TestLeaderOfASplitVoteKeepsItsVotes(t *testing.T) {
	q := newQuorum(t, 3)
	c, other := claim("k", time.Minute), claim("k", time.Minute)
	q.at[1].mustHold(other)
	q.gates[2].shutDown()
	recorder := q.at[0].server.Record(t)
	go func() {
		for n := 0; n < 2; n, _ = q.gates[0].counts() {
			time.Sleep(time.Millisecond)
		}
		q.at[1].do("DEL", "loki:{k}", "loki:{k}:fence")
	}()
	q.mustHold(c)
	for _, command := range recorder.Scripted(t) {
		require.NotEqual(t, "del", command.Name(), "the leader gave a vote back")
	}
	q.release(c)
}

// Two votes say who holds, and three say until when.
func TestInspectWaitsForTheVoteThatTellsTheEnd(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	q.at[0].mustHold(c)
	c.Expiry = time.Hour
	q.at[1].mustHold(c)
	q.at[2].mustHold(c)
	q.gates[2].holdBefore()
	go func() {
		for _, g := range q.gates[:2] {
			for n := 0; n < 1; _, n = g.counts() {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(20 * time.Millisecond) // for a wrong answer to be given; the right one waits for the gate
		q.gates[2].open()
	}()
	holder, held, err := q.handler.Inspect(q.context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	require.Greater(t, holder.Left, 30*time.Minute)
}
