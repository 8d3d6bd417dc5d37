package redishandler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// nattedQuorum is a quorum of three servers behind one NAT, with ten idle connections to each.
func nattedQuorum(t *testing.T) (*nat, *quorum) {
	n, q := newNAT(t), &quorum{t: t}
	var clients []*redis.Client
	for range 3 {
		server := redistest.Start(t)
		client := server.Client(t, func(o *redis.Options) { o.Dialer = n.dial })
		fill(t, client, 10)
		clients = append(clients, client)
		q.at = append(q.at, &fixture{t: t, server: server, redis: server.Client(t)})
	}
	q.handler = redishandler.NewQuorum(clients, redishandler.WithServerTimeout(patience))
	return n, q
}

func TestQuorumAsksSilentServersAgainOverNewConnections(t *testing.T) {
	t.Parallel()
	n, q := nattedQuorum(t)
	c := claim("k", time.Minute)
	n.forget()
	q.mustHold(c)
	n.forget()
	require.True(t, q.extend(c))
	n.forget()
	holder, held, err := q.handler.Inspect(q.context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, c.Holder, holder.ID)
	n.forget()
	q.mustBeBusy(claim("k", time.Minute))
	n.forget()
	held, err = q.handler.ReleaseHeld(q.context(), c)
	require.NoError(t, err)
	require.True(t, held)
	q.nowhere()
}

func TestQuorumReleaseSaysWhetherAMajorityHeld(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	clients := []*redis.Client{q.at[0].redis, q.at[1].redis, q.at[2].redis}
	q.handler = redishandler.NewQuorum(clients, redishandler.WithServerTimeout(patience))
	release := func(forgetful int) bool {
		t.Helper()
		c := claim("k", time.Minute)
		q.mustHold(c)
		q.everywhere(c)
		for _, f := range q.at[:forgetful] {
			f.do("FLUSHALL")
		}
		held, err := q.handler.ReleaseHeld(q.context(), c)
		require.NoError(t, err)
		q.nowhere()
		return held
	}
	require.True(t, release(0))
	require.True(t, release(1))
	require.False(t, release(2))
	require.False(t, release(3))
}

// Two votes for one claim at once would take each other's back.
func TestQuorumJoinsARepeatedCallToItsFirst(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	for _, g := range q.gates {
		g.holdBefore()
	}
	first := make(chan error, 1)
	go func() {
		held, err := q.handler.Lock(q.context(), c)
		if err == nil && !held {
			err = errors.New("refused")
		}
		first <- err
	}()
	entered := func(g *gate) int { n, _ := g.counts(); return n }
	for _, g := range q.gates {
		require.Eventually(t, func() bool { return entered(g) == 1 }, patience, time.Millisecond)
	}
	again := c
	again.Repeated = true
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := q.handler.Lock(ctx, again)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, g := range q.gates {
		g.open()
	}
	require.NoError(t, <-first)
	q.everywhere(c)
	for _, g := range q.gates {
		require.Equal(t, 1, entered(g))
	}
}
