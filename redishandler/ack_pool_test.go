package redishandler_test

// This file is WAIT under a pool with many goroutines: it is about the connection that wrote.

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// Behind each script that the server gets comes a WAIT, on the same connection and with nothing but scripts between.
func TestReplicaAckWaitsOnTheConnectionThatWrote(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	redistest.StartReplica(t, f.server.Addr())
	client := f.server.Client(t, func(o *redis.Options) { o.PoolSize = 16 })
	f.handler = redishandler.New(client, redishandler.WithReplicaAck(1, 2*time.Second))
	f.mustHold(claim("warm", time.Minute))

	monitor, err := net.Dial("tcp", f.server.Addr())
	require.NoError(t, err)
	defer func() { _ = monitor.Close() }()
	_, err = monitor.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := make(chan string, 100000)
	go readLines(monitor, lines)
	require.Equal(t, "+OK", <-lines)

	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := range 20 {
				c := claim(fmt.Sprint(w, "-", i), time.Minute)
				held, err := f.handler.Lock(t.Context(), c)
				if err != nil || !held {
					t.Error(held, err)
				}
				if still, err := f.handler.Extend(t.Context(), c); err != nil || !still {
					t.Error(still, err)
				}
				client.Ping(t.Context()) // moves connections between goroutines
			}
		})
	}
	all.Wait()
	f.do("ECHO", "the end")
	unconfirmed := make(map[string]bool) // by connection
	scripts := 0
	for line := range lines {
		from, name, ok := monitored(line)
		if !ok {
			continue
		}
		switch name {
		case "eval", "evalsha":
			scripts++
			unconfirmed[from] = true
		case "wait":
			require.True(t, unconfirmed[from], "%s", line)
			unconfirmed[from] = false
		default:
			require.False(t, unconfirmed[from], "%s", line)
		}
		if name == "echo" {
			break
		}
	}
	require.NotContains(t, slices.Collect(maps.Values(unconfirmed)), true)
	require.GreaterOrEqual(t, scripts, 32*20*2)
}
