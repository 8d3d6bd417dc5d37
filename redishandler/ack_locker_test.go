package redishandler_test

// This file is what a Locker makes of claims that too few replicas have acknowledged.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// ackLocker is a Locker whose claims one replica has to acknowledge within ack.
func (f *fixture) ackLocker(ack, timeout time.Duration, opts ...func(*redis.Options)) *loki.Locker {
	l, err := loki.New(loki.Config{ServiceKey: "k", PrimaryTimeout: timeout,
		Primary: redishandler.New(f.server.Client(f.t, opts...), redishandler.WithReplicaAck(1, ack))})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func TestLockerReleasesAClaimThatTooFewReplicasAcknowledged(t *testing.T) {
	t.Parallel()
	f := newFixture(t) // there is no replica
	err := f.ackLocker(50*time.Millisecond, patience).ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
		t.Error("it ran")
		return nil
	})
	require.ErrorIs(t, err, loki.ErrUnavailable)
	require.ErrorContains(t, err, "0 of 1 replicas")
	f.eventuallyFree("loki:{k}")
}

func TestLockerReleasesAClaimWhoseWaitWasRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do("ACL", "SETUSER", "locks", "on", "nopass", "~*", "&*", "+@all", "-wait")
	err := f.ackLocker(50*time.Millisecond, patience, func(o *redis.Options) { o.Username, o.Password = "locks", "any" }).
		ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			t.Error("it ran")
			return nil
		})
	requireMistake(t, err, "may not run WAIT (NOPERM): run ACL SETUSER locks +wait")
	f.eventuallyFree("loki:{k}")
}

func (f *fixture) eventuallyFree(key string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.value(key) == "" }, patience, time.Millisecond)
}

// The first attempt of a call waits for the replica in vain. The second one has found the claim recorded, and is
// acknowledged.
func TestReplicaAckOfOneAttemptHoldsThoughAnotherHadNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.Start(t, f.server.Addr())
	redistest.StartReplica(t, proxy.Addr())
	const timeout = 4 * time.Second
	patiently := func(o *redis.Options) { o.ReadTimeout = timeout }
	a, b := f.ackLocker(timeout-time.Second/2, timeout, patiently), f.ackLocker(timeout-time.Second/2, timeout, patiently)
	require.NoError(t, a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }))

	proxy.BlackHole()
	first := make(chan error, 1)
	go func() {
		defer proxy.PassThrough()
		waiting := f.waiting(2)
		if waiting == nil {
			first <- errors.New("there was no second attempt")
			return
		}
		first <- f.redis.ClientUnblock(context.Background(), slices.Min(waiting)).Err() // as if its time were up
		f.waiting(1)
	}()
	require.NoError(t, a.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
		require.NoError(t, <-first)
		err := b.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error {
			t.Error("two at once")
			return nil
		})
		require.ErrorIs(t, err, loki.ErrBusy)
		return nil
	}))
	f.eventuallyFree("loki:{k}")
}

// waiting returns the ids of the clients that WAIT keeps waiting, when there are n of them, or nil.
func (f *fixture) waiting(n int) (ids []int64) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		ids = nil
		for line := range strings.Lines(f.redis.ClientList(context.Background()).Val()) {
			var id int64
			if _, err := fmt.Sscanf(line, "id=%d", &id); err == nil && strings.Contains(line, " flags=b ") {
				ids = append(ids, id)
			}
		}
		if len(ids) == n {
			return ids
		}
	}
	return nil
}
