package redishandler_test

// This file is the clients that fit, and that they stay the caller's.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

var (
	_ redishandler.Client = (*redis.Client)(nil)
	_ redishandler.Client = (*redis.ClusterClient)(nil)
	_ redishandler.Client = (*redis.Ring)(nil)
	_ redishandler.Client = (*redis.Conn)(nil)
	_ redishandler.Client = redis.UniversalClient(nil)
	_ redishandler.Client = redis.Scripter(nil)
)

func TestClusterThatIsDownIsUnavailable(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes") // no slots are assigned
	_, err := redishandler.New(server.Client(t, noWait)).Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "CLUSTERDOWN")

	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, MaxRedirects: -1})
	defer func() { require.NoError(t, client.Close()) }()
	_, err = redishandler.New(client).Lock(t.Context(), claim("k", time.Minute))
	require.Error(t, err)
	requireUnavailable(t, err, "")
}

func TestRing(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.Addr(), "b": b.Addr()}})
	defer func() { require.NoError(t, ring.Close()) }()
	f := &fixture{t: t, redis: a.Client(t), handler: redishandler.New(ring)}
	for i := range 20 {
		c := mirrored(claim(fmt.Sprint("k", i), time.Minute))
		f.mustHold(c)
		require.True(t, f.extend(c))
		f.release(c)
	}
	require.NotEmpty(t, f.keys())
	require.Less(t, len(f.keys()), 20, "both shards are in use")
}

func TestRingWithoutShardsIsUnavailable(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { require.NoError(t, ring.Close()) }()
	_, err := redishandler.New(ring).Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "all ring shards are down")
}

// wrapping is a client as a tracing library would make it: other errors around those of go-redis.
type wrapping struct{ redishandler.Client }

func (w wrapping) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := w.Client.EvalSha(ctx, sha, keys, args...)
	if cmd.Err() != nil {
		cmd.SetErr(fmt.Errorf("traced: %w", cmd.Err()))
	}
	return cmd
}

func TestAWrappedClient(t *testing.T) {
	f := newFixture(t)
	f.handler = redishandler.New(wrapping{f.server.Client(t, noWait)})
	c := claim("k", time.Minute)
	f.mustHold(c) // through NOSCRIPT
	require.True(t, f.extend(c))
	f.release(c)
	f.do("RPUSH", "loki:{k}", "a")
	_, err := f.handler.Lock(t.Context(), c)
	requireMistake(t, err, "holds something that is not a lock")
	f.do("DEL", "loki:{k}")
	f.do("CONFIG", "SET", "maxmemory", "1")
	_, err = f.handler.Lock(t.Context(), c)
	requireUnavailable(t, err, "OOM")
	require.ErrorContains(t, err, "traced: ")
}

func TestCase095_TheClientStaysTheCallers(t *testing.T) {
	f := newFixture(t)
	client := f.server.Client(t)
	before := *client.Options()
	for range 2 {
		c := claim("k", time.Minute)
		f.handler = redishandler.New(client)
		f.mustHold(c)
		f.release(c)
	}
	require.NoError(t, client.Ping(t.Context()).Err())
	require.Equal(t, before.MaxRetries, client.Options().MaxRetries)
	require.Equal(t, before.ReadTimeout, client.Options().ReadTimeout)
}

func TestManyGoroutinesOneHolder(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	held, holders, last := 0, 0, int64(0)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				c := mirrored(claim("k", time.Minute))
				g, err := f.handler.Grant(t.Context(), c)
				if err != nil || !g.Held {
					continue
				}
				mu.Lock()
				held++
				holders++
				if holders != 1 || g.Fence <= last {
					t.Errorf("%d holders; the fence %d after %d", holders, g.Fence, last)
				}
				holders, last = holders-1, g.Fence
				mu.Unlock()
				if err := f.handler.Release(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Positive(t, held)
	require.Equal(t, []string{"loki:{k}:fence"}, f.keys())
}
