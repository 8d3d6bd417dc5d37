package main

import (
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/redistest"
)

func TestAFullPoolHasNoConnectionForAnybodyElse(t *testing.T) {
	server := redistest.Start(t)
	w := &worker{}
	client := w.client(referee.Primary, &redis.Options{Addr: server.Addr(), PoolSize: 3, PoolTimeout: 10 * time.Millisecond})
	t.Cleanup(func() { _ = client.Close() })
	in, orders := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.takeOrders(t.Context(), in)
	}()
	order := func(text string) {
		_, err := io.WriteString(orders, text+"\n")
		require.NoError(t, err)
	}
	for range 2 { // it can be held again
		order("hold secondary") // is somebody else's
		order("hold primary")
		require.Eventually(t, func() bool {
			s := client.PoolStats()
			return s.TotalConns == 3 && s.IdleConns == 0
		}, 10*time.Second, time.Millisecond)
		require.ErrorIs(t, client.Ping(t.Context()).Err(), redis.ErrPoolTimeout)
		order("free primary")
		require.Eventually(t, func() bool { return client.PoolStats().IdleConns == 3 }, 10*time.Second, time.Millisecond)
		require.NoError(t, client.Ping(t.Context()).Err())
	}
	require.NoError(t, orders.Close())
	<-ended
}
