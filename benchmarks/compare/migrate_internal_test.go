package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// What docs/migrating.md says of a fleet that moves instance by instance: with WithLokiNetKeys Loki uses the key that redsync
// and redislock use, and each respects the other's lock.
func TestMigration_LocksExcludeEachOther(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redishandler.New(client, redishandler.WithLokiNetKeys())).
		Build()
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.WithoutCancel(t.Context()))
	ctx := t.Context()

	for name, acquire := range map[string]func() (release func() error, err error){
		"redsync": func() (func() error, error) {
			mutex := redsync.New(goredis.NewPool(client)).NewMutex("invoice-batch")
			return func() error { _, err := mutex.UnlockContext(ctx); return err }, mutex.TryLockContext(ctx)
		},
		"redislock": func() (func() error, error) {
			lock, err := redislock.Obtain(ctx, client, "invoice-batch", time.Minute, nil)
			return func() error { return lock.Release(ctx) }, err
		},
	} {
		for range 2 { // again, after Loki has released the lock
			release, err := acquire()
			if err != nil {
				t.Fatalf("%s does not get a free lock: %v", name, err)
			}
			if err := locker.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error { return nil }); !errors.Is(err, loki.ErrBusy) {
				t.Errorf("while %s holds the lock, Loki returns %v", name, err)
			}
			if err := release(); err != nil {
				t.Errorf("%s does not release its lock: %v", name, err)
			}
			if err := locker.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error {
				if _, err := acquire(); err == nil {
					return errors.New("it acquired the lock as well")
				}
				return nil
			}); err != nil {
				t.Errorf("while Loki holds the lock, %s: %v", name, err)
			}
		}
	}
}
