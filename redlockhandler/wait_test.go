package redlockhandler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/memhandler"
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

// farLockers are instances that are 10 to 80 ms away from every server, with a secondary that decides if the servers do not.
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
			Primary:        redlockhandler.New(clients, redlockhandler.WithServerTimeout(patience)), // a slow machine is no slow server
			PrimaryTimeout: 2 * patience,
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
	var ran atomic.Int64
	begun := time.Now()
	var all sync.WaitGroup
	for _, locker := range farLockers(t, 20, nil) {
		all.Go(func() {
			for range runs {
				err := locker.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					time.Sleep(10*time.Millisecond + rand.N(70*time.Millisecond)) // the work
					ran.Add(1)
					return nil
				}, loki.WithWait(2*time.Minute))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d runs in %v", ran.Load(), time.Since(begun).Round(time.Millisecond))
	require.Equal(t, int64(20*runs), ran.Load())
}

// All instances of a cron begin at once: one of them runs, to the others it is busy, and none falls back to a secondary that
// knows nothing yet.
func TestASplitVoteIsBusyToAllButOne(t *testing.T) {
	const instances = 20
	secondary := &counting{Handler: memhandler.New()}
	lockers := farLockers(t, instances, secondary)
	for range 5 {
		var ran atomic.Int64
		var others, all sync.WaitGroup
		others.Add(instances - 1)
		for _, locker := range lockers {
			all.Go(func() {
				err := locker.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					if ran.Add(1) == 1 {
						others.Wait()
					}
					return nil
				})
				switch {
				case errors.Is(err, loki.ErrBusy):
					others.Done()
				case err != nil:
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), ran.Load())
	}
	require.LessOrEqual(t, secondary.locks.Load(), int64(5), "one mirror write for each run")
}

// counting counts the claims that a store is asked to record.
type counting struct {
	*memhandler.Handler
	locks atomic.Int64
}

func (c *counting) Grant(ctx context.Context, claim loki.Claim) (loki.Grant, error) {
	c.locks.Add(1)
	return c.Handler.Grant(ctx, claim)
}
