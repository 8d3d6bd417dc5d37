package redishandler_test

// This file is the states in which a real server does not serve, and what changes while locks are held.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

func TestAServerThatLoadsIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustHold(claim("k", time.Minute))
	f.server.RestartLoading(t)
	f.handler = redishandler.New(f.server.Client(t, noWait))
	for _, call := range calls(f.handler, claim("k", time.Minute)) {
		requireUnavailable(t, call(t.Context()), "LOADING")
	}
	require.Eventually(t, func() bool {
		_, held, err := f.handler.Inspect(t.Context(), "k")
		return err == nil && held
	}, 4*patience, 5*time.Millisecond, "it was saved")
}

func TestAReplicaWithoutItsMasterIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do("CONFIG", "SET", "replica-serve-stale-data", "no")
	f.do("REPLICAOF", "127.0.0.1", 1)
	handler := redishandler.New(f.server.Client(t, noWait))
	for name, call := range calls(handler, claim("k", time.Minute)) {
		err := call(t.Context())
		requireUnavailable(t, err, "MASTERDOWN")
		require.True(t, redis.IsMasterDownError(err), name)
	}
}

func TestAFullDiskIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := claim("held", time.Minute)
	f.mustHold(held)
	f.server.LoseDisk(t)
	handler := redishandler.New(f.server.Client(t, noWait))
	for _, c := range []loki.Claim{held, claim("held", time.Minute), claim("free", time.Minute)} {
		for name, call := range calls(handler, c) {
			if name != "Inspect" {
				requireUnavailable(t, call(t.Context()), "MISCONF")
			}
		}
	}
	f.do("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
	f.mustBeBusy(claim("held", time.Minute))
	f.release(held)
}

// What goes on at a server in a day, in a second: nothing of it may make two holders, or an error that is no outage.
func TestNothingThatChangesAtAServerDoesHarm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do("CONFIG", "SET", "lua-time-limit", "5000")
	stop := make(chan struct{})
	var workers sync.WaitGroup
	end := sync.OnceFunc(func() {
		close(stop)
		workers.Wait()
	})
	defer end()
	var granted, refused atomic.Int64
	for key := range 2 {
		var holders atomic.Int64
		var last atomic.Int64
		for range 3 {
			handler := redishandler.New(f.server.Client(t))
			workers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					c := claim(fmt.Sprint("k", key), time.Minute)
					g, err := handler.Grant(t.Context(), c)
					switch {
					case err != nil:
						refused.Add(1)
						if !loki.IsUnavailable(err) {
							t.Errorf("%v is not taken for an outage", err)
						}
					case g.Held:
						granted.Add(1)
						if holders.Add(1) != 1 {
							t.Error("two holders")
						}
						if before := last.Swap(g.Fence); before >= g.Fence {
							t.Errorf("the fence %d after %d", g.Fence, before)
						}
						if held, err := handler.Extend(t.Context(), c); err == nil && !held {
							t.Error("the lock is lost")
						}
						holders.Add(-1)
					}
					for err := handler.Release(t.Context(), c); loki.IsUnavailable(err); err = handler.Release(t.Context(), c) {
						refused.Add(1) // it is tried again, as the Locker does
					}
				}
			})
		}
	}
	changes := [][][]any{
		{{"SCRIPT", "FLUSH"}},
		{{"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}},
		{{"CONFIG", "SET", "maxmemory", "1"}, {"CONFIG", "SET", "maxmemory", "0"}},
		{{"CONFIG", "SET", "min-replicas-to-write", "1"}, {"CONFIG", "SET", "min-replicas-to-write", "0"}},
		{{"REPLICAOF", "127.0.0.1", 1}, {"REPLICAOF", "NO", "ONE"}},
		{{"CLIENT", "PAUSE", 20}},
	}
	for round := range 60 {
		for _, command := range changes[(round+rand.IntN(2))%len(changes)] {
			f.do(command...)
			before := granted.Load() + refused.Load()
			require.Eventually(t, func() bool { return granted.Load()+refused.Load() > before+3 }, 2*patience, time.Millisecond)
		}
	}
	end()
	require.Greater(t, granted.Load(), int64(60))
	require.Positive(t, refused.Load(), "nothing of it was noticed")
	for key := range 2 {
		f.mustHold(claim(fmt.Sprint("k", key), time.Minute))
	}
}

// Seen: the clock of a server was set forward, and all locks were gone at once. To a lock that is the same as an expiry
// in the past.
func TestCase058_AJumpOfTheServersClockIsToldWithinARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const expiry = 3 * time.Second
	locker := func() *loki.Locker {
		l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(f.server.Client(t))).Build()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) })
		return l
	}
	a, b := locker(), locker()
	var jumped time.Time
	var running atomic.Bool
	ended := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		ended <- a.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
			running.Store(true)
			defer running.Store(false)
			close(started)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	<-started
	require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { return nil }), loki.ErrBusy)
	jumped = time.Now()
	f.do("PEXPIRE", "loki:{job}", 0)

	err := <-ended
	told := time.Since(jumped)
	require.ErrorIs(t, err, loki.ErrLockLost)
	require.ErrorIs(t, err, loki.ErrNotHeld, "it was told, and did not run into its expiry")
	require.Less(t, told, expiry/2, "a renewal is due before half of the expiry is over")
	require.NoError(t, b.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
		if running.Load() {
			return errors.New("two at once")
		}
		return nil
	}))
}

func TestAJobOutlivesASwitchOfRoles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(f.server.Client(t, noWait))).Build()
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, l.ExecuteWithinLock(t.Context(), 6*time.Second, func(ctx context.Context) error {
		f.do("REPLICAOF", "127.0.0.1", 1)
		require.Eventually(t, func() bool { return f.ttl("loki:{job}") < 3500*time.Millisecond }, 2*patience, 5*time.Millisecond, "renewals are refused")
		f.do("REPLICAOF", "NO", "ONE")
		require.Eventually(t, func() bool { return f.ttl("loki:{job}") > 4*time.Second }, patience, 5*time.Millisecond, "and go on")
		return ctx.Err()
	}))
}
