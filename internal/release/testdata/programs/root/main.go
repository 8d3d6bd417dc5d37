// A program of a user who has run go get github.com/lokilock/loki, and whose Redis is down.
package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/redishandler"
)

func main() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens there
	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redishandler.New(rdb)).
		SetSecondaryLockHandler(memhandler.New()).
		Build()
	if err != nil {
		log.Fatal(err)
	}
	ran := false
	err = locker.ExecuteWithinLock(ctx, 30*time.Second, func(context.Context) error {
		ran = true
		return nil
	})
	if err := errors.Join(err, locker.Close(ctx)); err != nil || !ran {
		log.Fatal(ran, err)
	}
}
