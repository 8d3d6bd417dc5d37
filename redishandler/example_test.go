package redishandler_test

// This file is for readers of the documentation.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

// A worker of which one instance at a time does the work. It needs a server, so it is compiled and not run.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer func() { _ = rdb.Close() }() // the client stays yours

	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redishandler.New(rdb)).
		Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer func() { _ = locker.Close(ctx) }() // before the client

	err = locker.ExecuteWithinLock(ctx, 30*time.Second, func(context.Context) error {
		fmt.Println("closing the day")
		return nil
	})
	if loki.IgnoreBusy(err) != nil {
		fmt.Println(err)
	}
}

// A mistake does not show in New but in Validate, which Build calls; it is one of the sentences that Build returns.
func ExampleHandler_Validate() {
	h := redishandler.New(nil, redishandler.WithPrefix("{orders}:"))
	fmt.Println(h.Validate())
	// Output:
	// redishandler: the prefix "{orders}:" contains a brace, which would change the hash tag that keeps a lock's keys together
	// redishandler: the client is nil: make one with redis.NewClient, or pass the one you have
}

// Redis Cluster, Sentinel and Ring clients fit as they are.
func ExampleNew_cluster() {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.1:6379", "10.0.0.2:6379"}})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: []string{"10.0.0.1:26379"}})
	for _, h := range []*redishandler.Handler{
		redishandler.New(cluster, redishandler.WithPrefix("billing:")),
		redishandler.New(sentinel),
	} {
		fmt.Println(h.Validate())
	}
	// Output:
	// <nil>
	// <nil>
}

// At an application's start. It needs a server, so it is compiled and not run.
func ExampleCheck() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer func() { _ = rdb.Close() }()

	err := redishandler.Check(ctx, rdb) // with the same options as New
	switch {
	case errors.Is(err, redishandler.ErrAdvice):
		slog.Warn("Redis works, and could be set up better", "advice", err)
	case loki.IsUnavailable(err):
		slog.Warn("Redis cannot answer now", "error", err)
	case err != nil:
		fmt.Println(err) // what to do, a line for each fault
		return
	}
	_ = redishandler.New(rdb)
}
