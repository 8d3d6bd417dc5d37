package redlockhandler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redlockhandler"
)

// behindNAT is a quorum of three servers, with ten idle connections to each, and what has their NAT forget all connections
// that exist.
func behindNAT(t *testing.T) (q *quorum, forget func()) {
	q = &quorum{t: t}
	var clients []*redis.Client
	var proxies []*faultproxy.Proxy
	for range 3 {
		server := redistest.Start(t)
		proxy := faultproxy.Start(t, server.Addr())
		client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
		conns := make([]*redis.Conn, 10)
		for i := range conns {
			conns[i] = client.Conn()
			require.NoError(t, conns[i].Ping(t.Context()).Err())
		}
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		clients, proxies = append(clients, client), append(proxies, proxy)
		q.at = append(q.at, &fixture{t: t, server: server, redis: server.Client(t)})
	}
	q.handler = redlockhandler.New(clients, redlockhandler.WithServerTimeout(patience))
	return q, func() {
		for _, proxy := range proxies {
			proxy.Forget()
		}
	}
}

func TestAsksSilentServersAgainOverNewConnections(t *testing.T) {
	t.Parallel()
	q, forget := behindNAT(t)
	c := claim("k", time.Minute)
	forget()
	q.mustHold(c)
	forget()
	require.True(t, q.extend(c))
	forget()
	holder, held, err := q.handler.Inspect(q.context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, c.Holder, holder.ID)
	forget()
	q.mustBeBusy(claim("k", time.Minute))
	forget()
	held, err = q.handler.ReleaseHeld(q.context(), c)
	require.NoError(t, err)
	require.True(t, held)
	q.nowhere()
}

func TestReleaseSaysWhetherAMajorityHeld(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	clients := []*redis.Client{q.at[0].redis, q.at[1].redis, q.at[2].redis}
	q.handler = redlockhandler.New(clients, redlockhandler.WithServerTimeout(patience))
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

// Two votes for one claim at once would roll each other back.
func TestACallWaitsForTheCallThatItRepeats(t *testing.T) {
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

	repeated, anew := make(chan error, 1), make(chan bool, 1)
	go func() { _, err := q.handler.Lock(q.context(), again); repeated <- err }()
	go func() { held, err := q.handler.Lock(q.context(), c); anew <- held && err == nil }()
	time.Sleep(20 * time.Millisecond) // for a wrong call to vote; the right ones wait for the gates
	for _, g := range q.gates {
		require.Equal(t, 1, entered(g))
		g.open()
	}
	require.NoError(t, <-first)
	// A grant counts from the moment of its call, and these votes are older than the repeated one.
	requireUnavailable(t, <-repeated, "the call that this one repeats has acquired the lock")
	require.True(t, <-anew, "a call that repeats none votes itself")
	q.everywhere(c)
	for _, g := range q.gates {
		require.Eventually(t, func() bool { return entered(g) == 2 }, patience, time.Millisecond)
	}
}
