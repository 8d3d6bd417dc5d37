package redlockhandler_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redlockhandler"
)

// A lock on three servers that know nothing of each other. It holds while two of them do.
func ExampleNew() {
	var clients []*redis.Client
	for _, addr := range []string{"redis-a:6379", "redis-b:6379", "redis-c:6379"} {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}))
	}
	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redlockhandler.New(clients)).
		Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer func() { _ = locker.Close(ctx) }() // before the clients

	err = locker.ExecuteWithinLock(ctx, 30*time.Second, func(context.Context) error {
		fmt.Println("closing the day")
		return nil
	})
	if undecided, ok := errors.AsType[*redlockhandler.Error](err); ok {
		for _, vote := range undecided.Votes {
			fmt.Println(vote) // such as "server 2 at redis-b:6379: unreachable: dial tcp ..."
		}
	}
}

// Two servers are no quorum: the loss of one would be the loss of the majority.
func ExampleHandler_Validate() {
	a, b := redis.NewClient(&redis.Options{Addr: "redis-a:6379"}), redis.NewClient(&redis.Options{Addr: "redis-b:6379"})
	fmt.Println(redlockhandler.New([]redlockhandler.Client{a, b}).Validate())
	// Output:
	// redlockhandler: a majority of 2 servers does not survive the loss of one: give New three, five or seven
}
