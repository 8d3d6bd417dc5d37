package redlockhandler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redlockhandler"
)

// far is a client whose way to the server takes between least and most, each way.
type far struct {
	client      *redis.Client
	least, most time.Duration
}

func (f far) travel() { time.Sleep(f.least + rand.N(f.most-f.least)) }

func (f far) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	f.travel()
	defer f.travel()
	return f.client.Eval(ctx, script, keys, args...)
}

func (f far) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	f.travel()
	defer f.travel()
	return f.client.EvalSha(ctx, sha, keys, args...)
}

// farLockers are instances that are 10 to 80 ms away from every server.
func farLockers(t *testing.T, n int, secondary loki.LockHandler) []*loki.Locker {
	var servers []*redistest.Server
	for range 3 {
		servers = append(servers, redistest.Start(t))
	}
	var lockers []*loki.Locker
	for range n {
		var clients []redlockhandler.Client
		for _, server := range servers {
			clients = append(clients, far{server.Client(t), 5 * time.Millisecond, 40 * time.Millisecond})
		}
		locker, err := loki.New(loki.Config{
			ServiceKey: "job", Secondary: secondary,
			Primary:        redlockhandler.New(clients, redlockhandler.WithServerTimeout(time.Second)), // a slow machine is no slow server
			PrimaryTimeout: 2 * time.Second,
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = locker.Close(context.Background()) }) // before the clients
		lockers = append(lockers, locker)
	}
	return lockers
}

// Twenty instances vote at the same time, again and again, on servers that are all well.
func TestAWaitGoesOnAfterASplitVote(t *testing.T) {
	const runs = 3
	var mu sync.Mutex
	ran := 0
	begun := time.Now()
	var all sync.WaitGroup
	for _, locker := range farLockers(t, 20, nil) {
		all.Go(func() {
			for range runs {
				err := locker.ExecuteWithinLock(t.Context(), 10*time.Second, func(context.Context) error {
					time.Sleep(50 * time.Millisecond)
					return nil
				}, loki.WithWait(time.Minute))
				mu.Lock()
				if err != nil {
					t.Error(err)
				} else {
					ran++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	t.Logf("%d runs in %v", ran, time.Since(begun).Round(time.Millisecond))
	require.Equal(t, 20*runs, ran)
}

// A vote that is split is contention. All instances of a cron begin at once: one of them runs, and to the others it is
// busy.
func TestASplitVoteIsBusyToAllButOne(t *testing.T) {
	lockers := farLockers(t, 20, nil)
	none := 0
	const rounds = 6
	for range rounds {
		var mu sync.Mutex
		ran := 0
		var all sync.WaitGroup
		for _, locker := range lockers {
			all.Go(func() {
				err := locker.ExecuteWithinLock(t.Context(), 10*time.Second, func(context.Context) error {
					mu.Lock()
					ran++
					mu.Unlock()
					time.Sleep(time.Second) // longer than any of them votes
					return nil
				})
				if err != nil && !errors.Is(err, loki.ErrBusy) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, ran, 1)
		if ran == 0 {
			none++
		}
	}
	t.Logf("nobody ran in %d of %d rounds", none, rounds)
	require.Less(t, none, rounds/2)
}
