package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockContender is bsm/redislock as its README shows it. Its README does not wait; its example for that,
// ExampleClient_Obtain_retry, asks again every 100 ms.
type redislockContender struct {
	client *redis.Client
	locker *redislock.Client
	expiry time.Duration
}

const redislockBackoff = 100 * time.Millisecond

func openRedislock(addr string, expiry time.Duration) (contender, error) {
	client := dial(addr)
	return &redislockContender{client: client, locker: redislock.New(client), expiry: expiry}, nil
}

func (r *redislockContender) try(ctx context.Context, key string, fn func()) error {
	return r.obtain(ctx, key, fn, nil)
}

func (r *redislockContender) wait(ctx context.Context, key string, fn func()) error {
	return r.obtain(ctx, key, fn, &redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockBackoff)})
}

func (r *redislockContender) obtain(ctx context.Context, key string, fn func(), opts *redislock.Options) error {
	lock, err := r.locker.Obtain(ctx, key, r.expiry, opts)
	switch {
	case errors.Is(err, redislock.ErrNotObtained):
		return errBusy
	case err != nil:
		return err
	}
	if fn != nil {
		fn()
	}
	return lock.Release(ctx)
}

func (r *redislockContender) close() error { return r.client.Close() }
