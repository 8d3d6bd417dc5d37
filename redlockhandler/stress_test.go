package redlockhandler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redlockhandler"
)

// At any time one server of three is killed and comes back with what it had promised, or is stopped and goes on.
func TestExcludesWhileAMinorityFails(t *testing.T) {
	const (
		lockers = 4
		expiry  = 2 * time.Second
		span    = 3 * time.Second
		enough  = 10 // runs, for which a slow machine gets more time
	)
	var servers []*redistest.Server
	for range 3 {
		servers = append(servers, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"))
	}
	ctx, stop := context.WithTimeout(t.Context(), 8*span)
	defer stop()

	var inside, runs, overlaps atomic.Int64
	var refusal atomic.Pointer[error]
	var all sync.WaitGroup
	for range lockers {
		var clients []redlockhandler.Client
		for _, server := range servers {
			clients = append(clients, server.Client(t))
		}
		locker, err := loki.NewBuilder().
			SetServiceKey("stress").
			SetPrimaryLockHandler(redlockhandler.New(clients)).
			Build()
		require.NoError(t, err)
		all.Go(func() {
			defer func() { _ = locker.Close(t.Context()) }()
			for ctx.Err() == nil {
				err := locker.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
					if inside.Add(1) > 1 && ctx.Err() == nil {
						overlaps.Add(1)
					}
					time.Sleep(rand.N(5 * time.Millisecond)) // the work
					inside.Add(-1)
					runs.Add(1)
					return nil
				}, loki.WithWait(time.Second))
				if err != nil && !errors.Is(err, loki.ErrBusy) && ctx.Err() == nil {
					refusal.Store(&err) // for a moment there was no majority
				}
			}
		})
	}
	for begun := time.Now(); ctx.Err() == nil && (time.Since(begun) < span || runs.Load() < enough); time.Sleep(rand.N(100 * time.Millisecond)) {
		victim := servers[rand.IntN(len(servers))]
		if rand.IntN(2) == 0 {
			victim.Restart(t)
			continue
		}
		victim.Stop(t)
		time.Sleep(rand.N(300 * time.Millisecond))
		victim.Cont(t)
	}
	stop()
	all.Wait()
	require.Zero(t, overlaps.Load(), "two were inside")
	if last := refusal.Load(); last != nil {
		t.Logf("%d runs; the last error: %v", runs.Load(), *last)
	}
	require.GreaterOrEqual(t, runs.Load(), int64(enough))
	for _, server := range servers {
		rdb := server.Client(t)
		require.Eventually(t, func() bool {
			keys, err := rdb.Keys(t.Context(), "*").Result()
			return err == nil && len(keys) == 0
		}, 2*patience, 10*time.Millisecond, "what is left")
	}
}

// Three Lockers that start at the same moment, on as many servers: one runs, whoever it is, and nobody is told of an
// outage.
func TestNeverHasEverybodySkip(t *testing.T) {
	q := newQuorum(t, 3)
	var handlers []*redlockhandler.Handler
	for range 3 {
		_, h := q.another()
		handlers = append(handlers, h)
	}
	for range 50 {
		var winners atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for _, h := range handlers {
			all.Go(func() {
				<-start
				c := claim("k", time.Minute)
				held, err := h.Lock(q.context(), c)
				if err != nil {
					t.Error(err)
				}
				if held {
					winners.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		require.Equal(t, int64(1), winners.Load())
		for _, f := range q.at {
			f.do("FLUSHALL")
		}
	}
}
