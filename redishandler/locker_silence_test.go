package redishandler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/redishandler"
)

// A job that runs now and then finds the connections of the time before forgotten, each time.
//
// https://github.com/redis/go-redis/issues/941
func TestAJobBehindANATThatForgetsRunsEachTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, setup := range map[string]struct {
		change  func(*redis.Options)
		idle    int
		locker  func(*loki.Builder) *loki.Builder
		options []loki.Option
	}{
		"alone":               {idle: 10},
		"two connections":     {idle: 2, change: func(o *redis.Options) { o.PoolSize = 2 }},
		"with a wait":         {idle: 10, options: []loki.Option{loki.WithWait(10 * time.Second)}},
		"beside a secondary":  {idle: 10, locker: func(b *loki.Builder) *loki.Builder { return b.SetSecondaryLockHandler(memhandler.New()) }},
		"with everything set": {idle: 10, change: func(o *redis.Options) { o.ContextTimeoutEnabled, o.Protocol = true, 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := *f
			f.t = t
			change := setup.change
			if change == nil {
				change = func(*redis.Options) {}
			}
			n, client := f.natted(change)
			fill(t, client, setup.idle)
			b := loki.NewBuilder().SetServiceKey(name).SetPrimaryLockHandler(redishandler.New(client)).SetPrimaryTimeout(answerTime)
			if setup.locker != nil {
				b = setup.locker(b)
			}
			l, err := b.Build()
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) }()
			for i := range 6 {
				n.forget()
				var out loki.Outcome
				err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					n.forget()
					return nil
				}, append(setup.options, loki.WithOutcome(&out))...)
				require.NoError(t, err, i)
				require.True(t, out.Ran)
				require.Equal(t, loki.Primary, out.Store)
			}
		})
	}
}

func TestALeaseIsRenewedThoughItsConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n, client := f.natted()
	l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(client)).Build()
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) }()
	const expiry = 6 * time.Second
	require.NoError(t, l.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
		fill(t, client, 10)
		n.forget()
		return outlive(ctx, expiry)
	}))
}

// outlive waits longer than a lock lives that is not renewed.
func outlive(ctx context.Context, expiry time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(expiry * 3 / 2):
		return nil
	}
}

// A job may hold all connections that its application has.
//
// https://github.com/nextlyhq/nextly/pull/777
func TestAJobThatHoldsThePoolsLastConnectionsKeepsItsLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 2, -1 })
	l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(client)).Build()
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) }()
	const expiry = 6 * time.Second
	blocked := make(chan error, 2)
	require.NoError(t, l.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
		for i := range 2 {
			go func() { blocked <- client.BLPop(ctx, 0, fmt.Sprint("queue", i)).Err() }()
		}
		err := outlive(ctx, expiry)
		f.do("RPUSH", "queue0", "an item")
		f.do("RPUSH", "queue1", "an item")
		return err
	}))
	require.NoError(t, <-blocked)
	require.NoError(t, <-blocked)
}
