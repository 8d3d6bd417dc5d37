package redishandler_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// answerTime is what a repeated request may take. go-redis by default waits 5 s for a reply.
const answerTime = 3 * time.Second

// requireRepeatable demands that every operation is answered over a new connection, though all connections that exist
// are dead, those of the operation before among them.
func requireRepeatable(t *testing.T, h loki.LockHandler, forget func(), key string) {
	t.Helper()
	within := func() context.Context {
		forget()
		ctx, cancel := context.WithTimeout(t.Context(), answerTime)
		t.Cleanup(cancel)
		return ctx
	}
	c := claim(key, time.Minute)
	c.Repeated = true
	g, err := h.(loki.Granter).Grant(within(), c)
	require.NoError(t, err)
	require.True(t, g.Held)
	held, err := h.(loki.Extender).Extend(within(), c)
	require.NoError(t, err)
	require.True(t, held)
	held, err = h.(loki.Releaser).ReleaseHeld(within(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(within(), c))
}

// https://github.com/redis/go-redis/issues/941
func TestARepeatedRequestGoesOverANewConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, change := range map[string]func(*redis.Options){
		"defaults":            func(*redis.Options) {},
		"two connections":     func(o *redis.Options) { o.PoolSize = 2 },
		"RESP2 and a name":    func(o *redis.Options) { o.Protocol, o.ClientName, o.DB = 2, "billing", 3 },
		"no timeouts":         func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
		"no retries":          noWait,
		"timeouts by ctx":     func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"warm, and no spares": func(o *redis.Options) { o.MinIdleConns, o.MaxActiveConns, o.PoolSize = 2, 2, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			f := *f
			f.t = t
			n, client := f.natted(change)
			fill(t, client, min(10, client.Options().PoolSize))
			requireRepeatable(t, redishandler.New(client), n.forget, "k")
			require.NoError(t, f.redis.Ping(t.Context()).Err())
		})
	}
}

func TestARepeatedRequestWithReplicaAckGoesOverANewConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	redistest.StartReplica(t, f.server.Addr())
	n, client := f.natted()
	fill(t, client, 10)
	requireRepeatable(t, redishandler.New(client, redishandler.WithReplicaAck(1, time.Second)), n.forget, "k")
}

func TestARepeatedRequestUsesTLSAsTheClientDoes(t *testing.T) {
	t.Parallel()
	certFile, keyFile, pool := certificate(t)
	addr := freeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	server := redistest.Start(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
		"--tls-ca-cert-file", certFile, "--tls-auth-clients", "no")
	n := newNAT(t)
	client := server.Client(t, func(o *redis.Options) {
		o.Addr, o.TLSConfig = n.to(addr).Addr(), &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	})
	fill(t, client, 10)
	requireRepeatable(t, redishandler.New(client), n.forget, "k")
}

func TestARepeatedRequestFindsTheShard(t *testing.T) {
	t.Parallel()
	t.Run("of a Ring", func(t *testing.T) {
		n := newNAT(t)
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:  map[string]string{"a": redistest.Start(t).Addr(), "b": redistest.Start(t).Addr()},
			Dialer: n.dial, HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
		})
		defer func() { require.NoError(t, ring.Close()) }()
		for i := range 10 {
			requireRepeatable(t, redishandler.New(ring), n.forget, fmt.Sprint("k", i))
		}
	})
	t.Run("of a cluster", func(t *testing.T) {
		n := newNAT(t)
		cluster := redistest.StartCluster(t, 3, false)
		client := cluster.Client(t, func(o *redis.ClusterOptions) { o.Dialer = n.dial })
		require.NoError(t, client.Ping(t.Context()).Err())
		for i := range 10 {
			requireRepeatable(t, redishandler.New(client), n.forget, fmt.Sprint("k", i))
		}
	})
	t.Run("behind sentinels", func(t *testing.T) {
		n := newNAT(t)
		var addrs []string
		for _, s := range startWatched(t).sentinels {
			addrs = append(addrs, s.Addr())
		}
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: addrs, Dialer: n.dial})
		defer func() { require.NoError(t, client.Close()) }()
		require.NoError(t, client.Ping(t.Context()).Err())
		requireRepeatable(t, redishandler.New(client), n.forget, "k") // the connection to the sentinel is dead as well
	})
}

// go-redis tries three more connections of its pool, and these have been forgotten too.
func TestACallOutlivesAPoolOfResetConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, name := range []string{"Lock", "Extend", "Inspect", "Release"} {
		n, client := f.natted()
		c := claim(name, time.Minute)
		f.mustHold(c)
		fill(t, client, 10)
		n.reset()
		require.NoError(t, calls(redishandler.New(client), c)[name](t.Context()), name)
	}
}

func TestARepeatedRequestOfAClosedClientIsAMistake(t *testing.T) {
	f := newFixture(t)
	client := f.server.Client(t)
	h := redishandler.New(client)
	require.NoError(t, client.Close())
	c := claim("k", time.Minute)
	c.Repeated = true
	for name, call := range calls(h, c) {
		err := call(t.Context())
		require.ErrorIs(t, err, redis.ErrClosed, name)
		require.False(t, loki.IsUnavailable(err), name)
	}
}

// A wrapper may be a mock, which knows no server.
func TestAWrapperIsAskedToRepeatARequestItself(t *testing.T) {
	f := newFixture(t)
	f.handler = redishandler.New(wrapping{f.server.Client(t)})
	c := claim("k", time.Minute)
	c.Repeated = true
	f.mustHold(c)
	require.True(t, f.extend(c))
	f.release(c)
}

func TestRepeatedRequestsShareConnectionsAndLeaveNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n, client := f.natted()
	h := redishandler.New(client)
	fill(t, client, 10)
	n.forget()
	before := n.connections()
	most, done := 0, make(chan struct{})
	var all sync.WaitGroup
	for i := range 2000 {
		all.Go(func() {
			c := claim(fmt.Sprint("k", i), time.Minute)
			c.Repeated = true
			if held, err := h.Lock(t.Context(), c); err != nil || !held {
				t.Error(held, err)
			}
		})
	}
	go func() {
		all.Wait()
		close(done)
	}()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(time.Millisecond):
			most = max(most, n.connections()-before)
		}
	}
	require.LessOrEqual(t, most, 100, "of 2000 that might have been")
	require.Eventually(t, func() bool { return n.connections() == before }, patience, time.Millisecond)
}

func TestReleaseHeldSaysWhatItFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := f.proxied()
	release := func(c loki.Claim) bool {
		t.Helper()
		held, err := f.handler.ReleaseHeld(t.Context(), c)
		require.NoError(t, err)
		return held
	}
	c := claim("k", time.Minute)
	f.mustHold(c)
	require.True(t, release(c))
	require.False(t, release(c))
	f.mustHold(c)
	f.do("FLUSHALL")
	require.False(t, release(c))

	f.mustHold(c)
	lost := proxy.LoseReply(func(request []byte) bool { return strings.Contains(string(request), "evalsha") })
	require.True(t, release(c), "it may be its own work that the repeated request does not find")
	<-lost
	c.Repeated = true
	require.True(t, release(c), "an earlier request may have released it")
	f.handler = redishandler.New(wrapping{f.redis})
	c.Repeated = false
	require.True(t, release(c), "a wrapper may have sent it twice")
}

// silent is a client, known in full, whose pool is never free.
type silent struct{ *redis.Client }

func (s silent) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return s.Client.EvalSha(ctx, sha, keys, args...)
}

// https://github.com/nextlyhq/nextly/pull/777
func TestAnExhaustedPoolIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, poolTimeout := range map[string]time.Duration{"the pool gives up first": 20 * time.Millisecond, "ctx ends first": time.Minute} {
		t.Run(name, func(t *testing.T) {
			client := f.server.Client(t, noWait, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, poolTimeout })
			conn := client.Conn()
			require.NoError(t, conn.Ping(t.Context()).Err())
			h := redishandler.New(silent{client})
			for _, call := range calls(h, claim("k", time.Minute)) {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				err := call(ctx)
				cancel()
				requireUnavailable(t, err, `the pool of the client had no connection free for "k": 1 of its PoolSize of 1 are open, 0 idle: raise PoolSize`)
			}
			require.NoError(t, conn.Close())
		})
	}
}

func TestAnExhaustedPoolKeepsNoLockFromItsHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t, noWait, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 20*time.Millisecond })
	conn := client.Conn()
	require.NoError(t, conn.Ping(t.Context()).Err())
	f.handler = redishandler.New(client)
	c := claim("k", time.Minute)
	f.mustHold(c)
	require.True(t, f.extend(c))
	f.release(c)
	require.NoError(t, conn.Close())
}
