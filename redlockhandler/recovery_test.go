package redlockhandler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redlockhandler"
)

// What an outage has left behind, on every server at once, must not keep the servers from answering votes when they are back:
// votes that come too late leave as much behind again.
func TestRecoversFromAnOutageOfEveryServer(t *testing.T) {
	const enough = 24 // runs
	for name, tt := range map[string]struct {
		callers, handlers int // each handler is shared by some callers
		cutOff            bool
	}{
		"stopped": {callers: 24, handlers: 24},
		"cut off": {callers: 12, handlers: 3, cutOff: true}, // each connection is two, and the proxies are in this process
	} {
		t.Run(name, func(t *testing.T) {
			var servers []*redistest.Server
			var proxies []*faultproxy.Proxy
			var addrs []string
			for range 3 {
				server := redistest.Start(t)
				servers, addrs = append(servers, server), append(addrs, server.Addr())
			}
			if tt.cutOff {
				for i, server := range servers {
					proxies = append(proxies, faultproxy.Start(t, server.Addr()))
					addrs[i] = proxies[i].Addr()
				}
			}
			var handlers []*redlockhandler.Handler
			for range tt.handlers {
				var clients []*redis.Client
				for i, server := range servers {
					clients = append(clients, server.Client(t, func(o *redis.Options) { o.Addr = addrs[i] }))
				}
				handlers = append(handlers, redlockhandler.New(clients, redlockhandler.WithServerTimeout(250*time.Millisecond)))
			}
			var runs atomic.Int64
			ran := func(when string) {
				t.Helper()
				begun, before := time.Now(), runs.Load()
				require.Eventually(t, func() bool { return runs.Load() >= before+enough }, 30*time.Second, 10*time.Millisecond, when)
				t.Logf("%s: %d runs in %v", when, enough, time.Since(begun).Round(time.Millisecond))
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			for i := range tt.callers {
				locker, err := loki.New(loki.Config{ServiceKey: "job", Primary: handlers[i%len(handlers)], PrimaryTimeout: time.Second})
				require.NoError(t, err)
				all.Go(func() {
					defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }()
					for ctx.Err() == nil {
						_ = locker.ExecuteWithinLock(ctx, 10*time.Second, func(context.Context) error {
							runs.Add(1)
							return nil
						}, loki.WithWait(time.Minute)) // unavailable, now and then
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			ran("before")
			if tt.cutOff {
				for _, proxy := range proxies {
					proxy.BlackHole()
					defer proxy.PassThrough()
				}
			} else {
				for _, server := range servers {
					server.Stop(t)
				}
			}
			time.Sleep(time.Second) // the outage
			for _, proxy := range proxies {
				proxy.PassThrough()
			}
			if !tt.cutOff {
				for _, server := range servers {
					server.Cont(t)
				}
			}
			ran("after")
		})
	}
}
