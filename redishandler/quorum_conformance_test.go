package redishandler_test

// This file is the suite that every handler has to pass, for quorums.

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redishandler"
)

func TestConformanceOfQuorum(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) {
			t.Parallel()
			var clients []*redis.Client
			for range n {
				clients = append(clients, redistest.Start(t).Client(t))
			}
			q := redishandler.NewQuorum(clients, redishandler.WithServerTimeout(patience)) // a slow machine is no slow server
			lokitest.Run(t, func(*testing.T) loki.LockHandler { return q })
		})
	}
}
