package redishandler_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// https://github.com/nextlyhq/nextly/pull/777
func TestManyCallersShareFewConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.Start(t, f.server.Addr())
	proxy.Delay(5 * time.Millisecond)
	for name, change := range map[string]func(*redis.Options){
		"defaults":        func(*redis.Options) {},
		"two connections": func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 2, -1 },
	} {
		t.Run(name, func(t *testing.T) {
			callers := 500
			if name == "defaults" {
				callers = 2000
			}
			client := f.server.Client(t, change, func(o *redis.Options) { o.Addr = proxy.Addr() })
			var sent requests
			client.AddHook(&sent)
			h := redishandler.New(client)
			before := proxy.Connections()
			f.do("SCRIPT", "FLUSH")
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					c := claim(fmt.Sprint(name, i), time.Minute)
					if g, err := h.Grant(t.Context(), c); err != nil || !g.Held || g.Fence == 0 {
						t.Error(g, err)
					}
					if i%10 == 0 {
						if g, err := h.Grant(t.Context(), claim(c.Key, time.Minute)); err != nil || g.HeldBy.ID != c.Holder {
							t.Error("each has its own answer: ", g, err)
						}
					}
					if held, err := h.Extend(t.Context(), c); err != nil || !held {
						t.Error(held, err)
					}
					if held, err := h.ReleaseHeld(t.Context(), c); err != nil || !held {
						t.Error(held, err)
					}
				})
			}
			all.Wait()
			require.LessOrEqual(t, proxy.Connections()-before, 60, "of %d callers", callers)
			require.Less(t, int(sent.Load()), callers, "requests, for more than three calls of each caller")
		})
	}
}

// requests is a hook that counts commands and pipelines.
type requests struct{ counting }

func (r *requests) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.Add(1)
		return next(ctx, cmds)
	}
}

// blocking is a hook that holds commands back which contain a text, until it is released.
type blocking struct {
	text    string
	blocked atomic.Int64
	open    chan struct{}
}

func (b *blocking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *blocking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.hold(cmd)
		return next(ctx, cmd)
	}
}

func (b *blocking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.hold(cmds...)
		return next(ctx, cmds)
	}
}

func (b *blocking) hold(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.Contains(fmt.Sprint(cmd.Args()...), b.text) {
			b.blocked.Add(1)
			<-b.open
			return
		}
	}
}

func block(t *testing.T, client interface{ AddHook(hook redis.Hook) }, text string) *blocking {
	b := &blocking{text: text, open: make(chan struct{})}
	client.AddHook(b)
	return b
}

func TestRenewalsAndReleasesDoNotWaitBehindAcquisitions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t, func(o *redis.Options) { o.PoolSize = 200 })
	f.handler = redishandler.New(client)
	c := claim("k", time.Minute)
	f.mustHold(c)
	b := block(t, client, "slow")
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if _, err := f.handler.Lock(t.Context(), claim(fmt.Sprint("slow", i), time.Minute)); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return b.blocked.Load() > 0 }, patience, time.Millisecond)
	require.True(t, f.extend(c))
	f.release(c)
	require.NotZero(t, b.blocked.Load())
	close(b.open)
	all.Wait()
}

func TestACallThatWaitsForItsTurnHeedsItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t, func(o *redis.Options) { o.PoolSize = 200 })
	f.handler = redishandler.New(client)
	b := block(t, client, "slow")
	var all sync.WaitGroup
	var err error
	gone := 0
	for ; err == nil && gone < 8; gone++ { // on a slow machine those that block may be overdue, and not waited for
		for i := range 4 {
			all.Go(func() { _, _ = f.handler.Lock(t.Context(), claim(fmt.Sprint("slow", gone, "-", i), time.Minute)) })
		}
		require.Eventually(t, func() bool { return b.blocked.Load() == int64(4*(gone+1)) }, patience, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = f.handler.Lock(ctx, claim(fmt.Sprint("gone", gone), time.Minute))
		cancel()
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(b.open)
	all.Wait()
	require.Empty(t, f.value(fmt.Sprintf("loki:{gone%d}", gone-1)), "what has not been sent by then is not sent any more")
}

type panicking struct{ blocking }

func (p *panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 0 && strings.HasPrefix(cmds[0].Name(), "eval") { // not a connection's first commands
			panic("of a hook")
		}
		return next(ctx, cmds)
	}
}

func TestAHookThatPanicsEndsNoProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t)
	p := &panicking{blocking{text: "k", open: make(chan struct{})}}
	client.AddHook(p)
	h := redishandler.New(client)
	errs := make(chan error, 20)
	for i := range 20 {
		go func() {
			_, err := h.Lock(t.Context(), claim(fmt.Sprint("k", i), time.Minute))
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return p.blocked.Load() >= 4 }, patience, time.Millisecond)
	panics := 0
	close(p.open)
	for range 20 {
		if err := <-errs; err != nil {
			require.ErrorContains(t, err, "panicked: of a hook")
			panics++
		}
	}
	require.Positive(t, panics)
}

func TestAShardThatHangsKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	healthy, hung := redistest.Start(t), redistest.Start(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs:       map[string]string{"a": healthy.Addr(), "b": hung.Addr()},
		HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
	})
	defer func() { require.NoError(t, ring.Close()) }()
	h := redishandler.New(ring)
	var keys [2][]string
	for i := range 400 {
		key := fmt.Sprint("k", i)
		node, err := ring.GetShardClientForKey("loki:{" + key + "}")
		require.NoError(t, err)
		if node.Options().Addr == healthy.Addr() {
			keys[0] = append(keys[0], key)
		} else {
			keys[1] = append(keys[1], key)
		}
	}
	hung.Stop(t)
	lock := func(ctx context.Context, all *sync.WaitGroup, key string, check func(bool, error)) {
		all.Go(func() {
			held, err := h.Lock(ctx, claim(key, time.Minute))
			check(held, err)
		})
	}
	var stuck, healthyOnes sync.WaitGroup
	for _, key := range keys[1] {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		lock(ctx, &stuck, key, func(bool, error) {})
	}
	for _, key := range keys[0] {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		lock(ctx, &healthyOnes, key, func(held bool, err error) {
			if err != nil || !held {
				t.Error(held, err)
			}
		})
	}
	healthyOnes.Wait()
	hung.Cont(t)
	stuck.Wait()
}
