package redishandler_test

// This file is a Ring: independent servers of which the client chooses one for each lock.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// ringOfTwo is a Ring and a lock of the server that is killed.
func ringOfTwo(t *testing.T, change func(*redis.RingOptions)) (f *fixture, key string) {
	a, b := redistest.Start(t), redistest.Start(t)
	opts := &redis.RingOptions{
		Addrs: map[string]string{"a": a.Addr(), "b": b.Addr()}, HeartbeatFrequency: 20 * time.Millisecond, MaxRetries: -1,
	}
	change(opts)
	ring := redis.NewRing(opts)
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	f = &fixture{t: t, server: a, redis: a.Client(t), handler: redishandler.New(ring)}
	for i := 0; len(f.keys()) == 0; i++ {
		key = fmt.Sprint("k", i)
		f.mustHold(claim(key, time.Hour))
	}
	a.Kill()
	return f, key
}

// The page on Redis says so: what a Ring thinks of its servers is each process's own.
func TestARingThatDropsServersMovesLocks(t *testing.T) {
	t.Parallel()
	f, key := ringOfTwo(t, func(*redis.RingOptions) {})
	require.Eventually(t, func() bool {
		held, err := f.handler.Lock(t.Context(), claim(key, time.Minute))
		return err == nil && held // while the first holder holds
	}, 2*patience, 5*time.Millisecond)
}

func TestARingThatKeepsItsServersKeepsLocks(t *testing.T) {
	t.Parallel()
	f, key := ringOfTwo(t, func(o *redis.RingOptions) {
		o.HeartbeatFn = func(context.Context, *redis.Client) bool { return true }
	})
	for range 3 {
		_, err := f.handler.Lock(t.Context(), claim(key, time.Minute))
		requireUnavailable(t, err, "refused")
	}
	for i := range 20 { // the other server's locks are served
		_, err := f.handler.Lock(t.Context(), claim(fmt.Sprint("other", i), time.Minute))
		if err == nil {
			return
		}
	}
	t.Error("no lock can be had")
}
