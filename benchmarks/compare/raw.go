package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// raw is no library: the two commands of https://redis.io/docs/latest/commands/set/#patterns, through go-redis. It is what
// all others are compared with.
type raw struct {
	rdb    redis.Cmdable
	client *redis.Client
	expiry time.Duration
}

// pollEvery is how often somebody without a library would ask again.
const pollEvery = 10 * time.Millisecond

var compareAndDelete = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`)

func openRaw(addr string, expiry time.Duration) (contender, error) {
	client := dial(addr)
	return &raw{rdb: client, client: client, expiry: expiry}, nil
}

// openRawAuto makes the same commands share pipelines: the blocking, "drop-in" face of go-redis's README, with its defaults.
func openRawAuto(addr string, expiry time.Duration) (contender, error) {
	client := dial(addr)
	auto, err := client.AutoPipeline()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &raw{rdb: auto, client: client, expiry: expiry}, nil
}

func (r *raw) try(ctx context.Context, key string, fn func()) error {
	token := newToken()
	granted, err := r.rdb.SetNX(ctx, key, token, r.expiry).Result()
	switch {
	case err != nil:
		return err
	case !granted:
		return errBusy
	}
	if fn != nil {
		fn()
	}
	deleted, err := compareAndDelete.Run(ctx, r.rdb, []string{key}, token).Int()
	if err == nil && deleted == 0 {
		return errors.New("the lock was lost")
	}
	return err
}

func (r *raw) wait(ctx context.Context, key string, fn func()) error {
	for {
		err := r.try(ctx, key, fn)
		if !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *raw) close() error { return r.client.Close() } // and the AutoPipeliner with it

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
