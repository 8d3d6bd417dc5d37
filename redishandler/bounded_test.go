package redishandler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

// bounded has every call of a handler made as on the caller's goroutine.
type bounded struct{ *redishandler.Handler }

func (b bounded) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	c.Bounded = true
	return b.Handler.Lock(ctx, c)
}

func (b bounded) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	c.Bounded = true
	return b.Handler.Grant(ctx, c)
}

func (b bounded) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	c.Bounded = true
	return b.Handler.Extend(ctx, c)
}

func (b bounded) Release(ctx context.Context, c loki.Claim) error {
	c.Bounded = true
	return b.Handler.Release(ctx, c)
}

func (b bounded) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	c.Bounded = true
	return b.Handler.ReleaseHeld(ctx, c)
}

// heedful has a client heed the deadline of a context while it waits for an answer.
func heedful(o *redis.Options) { o.ContextTimeoutEnabled = true }

// The client's other settings have it wait for 5 s, or for ever.
func TestBoundedCallsReturnAtTheirDeadline(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*redis.Options){
		"defaults":       func(*redis.Options) {},
		"no timeouts":    func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
		"one connection": func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			client := f.server.Client(t, heedful, change)
			h := bounded{redishandler.New(client)}
			require.True(t, h.Bounds())
			c := claim("k", time.Minute)
			g, err := h.Grant(t.Context(), c)
			require.NoError(t, err)
			require.True(t, g.Held)

			f.server.Stop(t)
			const limit = 100 * time.Millisecond
			for op, call := range map[string]func(context.Context) error{
				"grant":   func(ctx context.Context) error { _, err := h.Grant(ctx, c); return err },
				"extend":  func(ctx context.Context) error { _, err := h.Extend(ctx, c); return err },
				"release": func(ctx context.Context) error { return h.Release(ctx, c) },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				begun := time.Now()
				err := call(ctx)
				took := time.Since(begun)
				cancel()
				require.Error(t, err, op)
				require.True(t, loki.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded), "%s: %v", op, err)
				require.GreaterOrEqual(t, took, limit, op)
				require.Less(t, took, limit+2*time.Second, op) // for a busy machine
			}
			f.server.Cont(t)
			require.NoError(t, client.Ping(t.Context()).Err())
		})
	}
}

func TestBoundsIsForAHeedfulClientOfOneServer(t *testing.T) {
	t.Parallel()
	one := &redis.Options{ContextTimeoutEnabled: true}
	require.True(t, redishandler.New(redis.NewClient(one)).Bounds())
	require.True(t, redishandler.New(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true})).Bounds())
	require.False(t, redishandler.New(redis.NewClient(&redis.Options{})).Bounds(), "by default it does not heed deadlines")
	require.False(t, redishandler.New(redis.NewClient(one), redishandler.WithReplicaAck(1, time.Second)).Bounds(), "WAIT may take its time")
	require.False(t, redishandler.New(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true})).Bounds())
	require.False(t, redishandler.New(redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, ContextTimeoutEnabled: true})).Bounds())
	require.False(t, redishandler.New(nil).Bounds())
	require.False(t, (*redishandler.Handler)(nil).Bounds())
}

// counter is a hook that counts commands, as those that trace them do.
type counter struct{ n atomic.Int64 }

func (*counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestBoundedCallsRunTheClientsHooks(t *testing.T) {
	t.Parallel()
	client := newFixture(t).server.Client(t, heedful)
	h := bounded{redishandler.New(client)}
	hook := &counter{}
	client.AddHook(hook)
	c := claim("k", time.Minute)
	for range 3 {
		before := hook.n.Load()
		_, err := h.Grant(t.Context(), c)
		require.NoError(t, err)
		require.NoError(t, h.Release(t.Context(), c))
		require.GreaterOrEqual(t, hook.n.Load(), before+2)
	}
}
