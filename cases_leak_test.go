package loki_test

// Cases 025 to 031: what must not be left behind, be it a renewal, a goroutine, a connection or a handle. Most count
// the goroutines of the whole process, so they are not parallel.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestCase025_RenewalDoesNotOutliveTheRelease(t *testing.T) {
	const expiry = 300 * time.Millisecond
	r := startRedis(t)
	l := instance(t, r.handler(), nil)
	requireRuns(t, l)
	before := runtime.NumGoroutine()
	var ran atomic.Int32
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			loops := 90
			if i%2 == 0 { // the release meets the first renewal
				loops = 10
			}
			for range loops {
				err := l.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
					ran.Add(1)
					if i%2 == 0 {
						time.Sleep(expiry/loki.RenewalFraction - 2*time.Millisecond + rand.N(4*time.Millisecond))
					}
					return nil
				}, loki.WithResource(fmt.Sprint(i)))
				// A machine that is busy for too long loses so short a lease, or does not get it. That is the truth.
				if err != nil && !errors.Is(err, loki.ErrLockLost) && !errors.Is(err, loki.ErrUnavailable) && !errors.Is(err, loki.ErrBusy) {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	require.NoError(t, l.Close(t.Context()))
	require.Greater(t, ran.Load(), int32(200), "so few closures show nothing")

	eventually(t, func() bool { return len(r.left()) == 0 }, "the keys are gone")
	for end := time.Now().Add(5 * expiry); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.requireEmpty() // nobody brings one back
	}
	requireGoroutines(t, before)
}

func TestCase027_GoexitReleases(t *testing.T) {
	r := startRedis(t)
	a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
	requireRuns(t, a)
	requireRuns(t, b)
	before := runtime.NumGoroutine()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			runtime.Goexit()
			return nil
		})
		t.Error("the call returned")
	}()
	<-ended
	requireRuns(t, b)
	requireGoroutines(t, before)
	r.requireEmpty()
}

func TestCase029_BusyCallsLeakNoConnection(t *testing.T) {
	t.Parallel()
	stub := newStubSQL()
	db := stub.open(t)
	db.SetMaxOpenConns(2)
	l := instance(t, refused(t), mssqlhandler.New(db))
	stub.set(stubBusy)
	for range 50 {
		requireSkipped(t, l)
	}
	require.Zero(t, db.Stats().InUse)
	stub.set(stubGranted)
	start := time.Now()
	require.Equal(t, loki.Secondary, requireRuns(t, l).Store)
	require.Less(t, time.Since(start), time.Second)

	t.Run("mssql", func(t *testing.T) {
		db := openSQL(t)
		db.SetMaxOpenConns(2)
		keys := newSQLKeys(db)
		claim := loki.Claim{Key: "job", Token: "held", Expiry: time.Minute}
		held, err := keys.Lock(t.Context(), claim)
		require.NoError(t, err)
		require.True(t, held)
		l := instance(t, refused(t), keys)
		for range 50 {
			requireSkipped(t, l)
		}
		require.Zero(t, db.Stats().InUse)
		require.NoError(t, keys.Release(t.Context(), claim))
		requireRuns(t, l)
	})
}

// Nothing is dialled before the first call, and what Open opened, Close closes.
func TestCase030_BuildingLeaksNoHandle(t *testing.T) {
	dsn := "sqlserver://user:secret@" + closedPort(t) + "?database=none&dial+timeout=1"
	build := func() {
		h, err := mssqlhandler.Open(dsn)
		require.NoError(t, err)
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: h, PrimaryTimeout: patience})
		require.NoError(t, err)
		err = l.ExecuteWithinLock(t.Context(), 60*time.Millisecond, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.NotErrorIs(t, err, loki.ErrBusy)
		require.NoError(t, l.Close(t.Context()))
		require.NoError(t, h.Close())
	}
	build()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 100 {
		build()
	}
	requireGoroutines(t, goroutines+2)
	require.LessOrEqual(t, openFiles(t), files+2)
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("the open files of a process are counted on Linux only: %v", err)
	}
	return len(entries)
}

func TestCase031_WaitersLeaveNoConnectionBehind(t *testing.T) {
	t.Parallel()
	const keys = 20
	r := startRedis(t)
	pool := func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 5, patience }
	a, b := instance(t, r.handler(pool), nil), instance(t, r.handler(pool), nil)
	clients := func() int {
		list, err := r.direct.ClientList(t.Context()).Result()
		require.NoError(t, err)
		return strings.Count(list, "id=")
	}
	round := func() (took time.Duration) {
		leases := make([]*loki.Lease, keys)
		for i := range leases {
			var err error
			leases[i], err = a.Acquire(t.Context(), time.Minute, loki.WithResource(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		start := time.Now()
		waiters := make([]*holding, keys)
		for i := range waiters {
			limit := patience
			if i%2 == 1 { // in vain
				limit = 400 * time.Millisecond
			}
			waiters[i] = begin(t.Context(), t, b, time.Minute, loki.WithResource(fmt.Sprint(i)), loki.WithWait(limit))
		}
		for i, w := range waiters {
			if i%2 == 1 {
				require.ErrorIs(t, w.wait(), loki.ErrBusy)
			}
		}
		for _, ls := range leases {
			require.NoError(t, ls.Release(t.Context()))
		}
		for i, w := range waiters {
			if i%2 == 0 {
				w.requireStarted()
				require.NoError(t, w.end())
			}
		}
		took = time.Since(start)
		eventually(t, func() bool {
			channels, err := r.direct.PubSubChannels(t.Context(), "*").Result()
			require.NoError(t, err)
			return len(channels) == 0
		}, "the subscriptions have ended")
		return took
	}
	round()
	var slowest time.Duration
	for range 9 {
		slowest = max(slowest, round())
	}
	eventually(t, func() bool { return clients() <= 5+5+1 }, "the connections are those of the two pools and of this test")
	require.Less(t, round(), 2*slowest+time.Second)
	r.requireEmpty()
}
