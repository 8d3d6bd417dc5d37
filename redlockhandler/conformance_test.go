package redlockhandler_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redlockhandler"
)

func TestConformance(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) {
			t.Parallel()
			var clients []*redis.Client
			for range n {
				clients = append(clients, redistest.Start(t).Client(t))
			}
			q := redlockhandler.New(clients, redlockhandler.WithServerTimeout(patience)) // a slow machine is no slow server
			lokitest.Run(t, func(*testing.T) loki.LockHandler { return q })
		})
	}
}
