package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncContender is redsync as its README shows it: a pool on go-redis, and a new mutex for each use. Its pauses between
// two attempts are its defaults, 50 to 250 ms.
type redsyncContender struct {
	client  *redis.Client
	rs      *redsync.Redsync
	expiry  time.Duration
	timeout float64 // of one answer, as a part of the expiry
}

// redsyncTries is as good as no limit: its default of 32 would end a wait after some five seconds.
const redsyncTries = 1 << 20

func openRedsync(addr string, expiry time.Duration) (contender, error) {
	client := dial(addr)
	return &redsyncContender{
		client: client, rs: redsync.New(goredis.NewPool(client)), expiry: expiry, timeout: patience.Seconds() / expiry.Seconds(),
	}, nil
}

func (r *redsyncContender) try(ctx context.Context, key string, fn func()) error {
	m := r.rs.NewMutex(key, redsync.WithExpiry(r.expiry), redsync.WithTimeoutFactor(r.timeout))
	err := m.TryLockContext(ctx)
	if _, taken := errors.AsType[*redsync.ErrTaken](err); taken {
		return errBusy
	}
	return r.run(ctx, m, err, fn)
}

func (r *redsyncContender) wait(ctx context.Context, key string, fn func()) error {
	m := r.rs.NewMutex(key, redsync.WithExpiry(r.expiry), redsync.WithTimeoutFactor(r.timeout), redsync.WithTries(redsyncTries))
	return r.run(ctx, m, m.LockContext(ctx), fn)
}

func (r *redsyncContender) run(ctx context.Context, m *redsync.Mutex, err error, fn func()) error {
	if err != nil {
		return err
	}
	if fn != nil {
		fn()
	}
	released, err := m.UnlockContext(ctx)
	if err == nil && !released {
		return errors.New("the lock was lost")
	}
	return err
}

func (r *redsyncContender) close() error { return r.client.Close() }
