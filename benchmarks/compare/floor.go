package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// floor is the least that a lock with this library's promises has to ask of Redis: a fencing token that survives a server
// which has lost everything, and so comes from its clock; the holder's name for those who find the lock busy; a wake-up at each
// release, since a releaser cannot know whether somebody waits. It is what a target that is not met is to be held against, and
// no lock for use: it renews nothing, recognises no repeated request, and trusts the clock.
type floor struct {
	client *redis.Client
	expiry time.Duration
}

var (
	floorAcquire = redis.NewScript(`
local holder = redis.call('set', KEYS[1], ARGV[1], 'nx', 'get', 'px', ARGV[2])
if holder then return holder end
local now = redis.call('time')
return now[1] * 1000000 + now[2]`)

	floorRelease = redis.NewScript(`
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('publish', KEYS[1], '')
return redis.call('del', KEYS[1])`)
)

func openFloor(addr string, expiry time.Duration) (contender, error) {
	return &floor{client: dial(addr), expiry: expiry}, nil
}

func (f *floor) try(ctx context.Context, key string, fn func()) error {
	value := newToken() + " a holder's name"
	reply, err := floorAcquire.Run(ctx, f.client, []string{key}, value, f.expiry.Milliseconds()).Result()
	if err != nil {
		return err
	}
	if _, busy := reply.(string); busy {
		return errBusy
	}
	if fn != nil {
		fn()
	}
	deleted, err := floorRelease.Run(ctx, f.client, []string{key}, value).Int()
	if err == nil && deleted == 0 {
		return errors.New("the lock was lost")
	}
	return err
}

func (f *floor) wait(context.Context, string, func()) error {
	return errors.New("the floor has no way of waiting")
}

func (f *floor) close() error { return f.client.Close() }
