package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

// lokiContender is this library as its README shows it, with the primary alone. A key is a resource of the service, unless
// it is the service's own.
type lokiContender struct {
	client *redis.Client
	locker *loki.Locker
	expiry time.Duration
}

func openLoki(addr string, expiry time.Duration) (contender, error) {
	client := dialHeedful(addr)
	locker, err := loki.NewBuilder().SetServiceKey(oneKey).SetPrimaryLockHandler(redishandler.New(client)).
		SetPrimaryTimeout(patience).Build()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &lokiContender{client: client, locker: locker, expiry: expiry}, nil
}

func (l *lokiContender) try(ctx context.Context, key string, fn func()) error {
	if key == oneKey {
		return l.execute(ctx, fn)
	}
	return l.execute(ctx, fn, loki.WithResource(key))
}

func (l *lokiContender) wait(ctx context.Context, key string, fn func()) error {
	if key == oneKey {
		return l.execute(ctx, fn, loki.WithWait(loki.UntilDone))
	}
	return l.execute(ctx, fn, loki.WithWait(loki.UntilDone), loki.WithResource(key))
}

func (l *lokiContender) execute(ctx context.Context, fn func(), opts ...loki.Option) error {
	run := doNothing
	if fn != nil {
		run = func(context.Context) error { fn(); return nil }
	}
	err := l.locker.ExecuteWithinLock(ctx, l.expiry, run, opts...)
	if errors.Is(err, loki.ErrBusy) {
		return errBusy
	}
	return err
}

func doNothing(context.Context) error { return nil }

func (l *lokiContender) close() error {
	return errors.Join(l.locker.Close(context.Background()), l.client.Close())
}
