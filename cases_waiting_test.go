package loki_test

// Cases 078 to 085: waiters that miss the release, ask too often, give up too early or too late.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

// longestPoll is the longest pause between two tries of a waiter, with its jitter.
const longestPoll = 282 * time.Millisecond

// deaf is a handler that tells nobody when a key may be free, so that waiters poll.
type deaf struct {
	loki.LockHandler
	loki.Granter
	loki.Extender
}

func deafen(h interface {
	loki.LockHandler
	loki.Granter
	loki.Extender
}) deaf {
	return deaf{h, h, h}
}

// bothWays runs a test with waiters that are told, and with waiters that poll.
func bothWays(t *testing.T, test func(t *testing.T, r *realRedis, handler func() loki.LockHandler)) {
	t.Run("told", func(t *testing.T) {
		r := startRedis(t)
		test(t, r, func() loki.LockHandler { return r.handler() })
	})
	t.Run("polling", func(t *testing.T) {
		r := startRedis(t)
		test(t, r, func() loki.LockHandler { return deafen(r.handler()) })
	})
}

func TestCase078_WaiterDoesNotMissTheRelease(t *testing.T) {
	t.Parallel()
	bothWays(t, testCase078)
}

func testCase078(t *testing.T, r *realRedis, handler func() loki.LockHandler) {
	t.Parallel()
	a, b := instance(t, handler(), nil), instance(t, handler(), nil)
	var keys sync.WaitGroup
	for key := range 8 {
		keys.Go(func() {
			resource := loki.WithResource(fmt.Sprint(key))
			for range 25 {
				waiting, granted := make(chan struct{}), make(chan error, 1)
				var began time.Time
				go func() {
					<-waiting
					granted <- b.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
						began = time.Now()
						return nil
					}, resource, loki.WithWait(5*time.Second))
				}()
				err := a.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					close(waiting)
					time.Sleep(rand.N(5 * time.Millisecond))
					return nil
				}, resource)
				released := time.Now()
				if err != nil {
					t.Error(err)
					return
				}
				if err := <-granted; err != nil {
					t.Error(err)
					return
				}
				if delay := began.Sub(released); delay > 2*longestPoll {
					t.Errorf("B started %v after the release", delay)
				}
			}
		})
	}
	keys.Wait()
	r.requireEmpty()
}

func TestCase079_HandOverInOneProcess(t *testing.T) {
	t.Parallel()
	const runs = 500
	r := startRedis(t)
	l := instance(t, r.handler(), nil)
	var (
		m       meter
		callers sync.WaitGroup
		longest [2]time.Duration
	)
	for caller := range longest {
		callers.Go(func() {
			for range runs {
				var out loki.Outcome
				err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					m.enter()
					defer m.leave()
					time.Sleep(time.Millisecond)
					return nil
				}, loki.WithWait(patience), loki.WithOutcome(&out))
				if err != nil {
					t.Error(err)
					return
				}
				longest[caller] = max(longest[caller], out.Waited)
			}
		})
	}
	callers.Wait()
	ran, most := m.counts()
	require.Equal(t, 2*runs, ran)
	require.Equal(t, 1, most)
	require.Less(t, max(longest[0], longest[1]), longestPoll+2*time.Second)
	r.requireEmpty()
}

// Not parallel: it measures the whole process.
func TestCase081_WaitingIsNoBusyLoop(t *testing.T) {
	bothWays(t, testCase081)
}

func testCase081(t *testing.T, r *realRedis, handler func() loki.LockHandler) {
	const window = 300 * time.Millisecond
	a, b := instance(t, handler(), nil), instance(t, handler(), nil)
	h := hold(t, a, 30*time.Second)
	recorder := r.Record(t)
	waiter := begin(t.Context(), t, b, 30*time.Second, loki.WithWait(loki.UntilDone))
	// The median of five: what this process has left to do of other tests, a collection of garbage above all, falls into
	// some of them, a waiter that is busy into all. A busy one takes the whole window, or half of it from a busy machine.
	spent := make([]time.Duration, 5)
	for i := range spent {
		before := cpuTime(t)
		time.Sleep(window)
		spent[i] = cpuTime(t) - before
	}
	slices.Sort(spent)
	commands := recorder.Sent(t)
	waiter.requireNotStarted()
	require.NoError(t, h.end())
	waiter.requireStarted()
	require.NoError(t, waiter.end())
	require.Less(t, spent[len(spent)/2], window/4)
	require.Less(t, len(commands), 20)
	require.GreaterOrEqual(t, len(commands), 2, "it does not ask at all")
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// pollsIn is how often one waiter asks at most while a lock is held for d: each pause is half as long again as the one
// before, up to 250 ms, give or take an eighth. One that is told asks less.
func pollsIn(d time.Duration) (polls int) {
	pause, at := 10*time.Millisecond, time.Duration(0)
	for ; at <= d; at += pause - pause/8 {
		polls++
		if polls > 1 {
			pause = min(pause*3/2, 250*time.Millisecond)
		}
	}
	return polls + 2 // the first, and a last one that was called off and rolled back
}

func TestCase082_WaitersAreNoHerd(t *testing.T) {
	t.Parallel()
	const waiters, holds = 100, 3 * time.Second
	// evals is how many scripts the server ran.
	evals := func(r *realRedis) (calls int) {
		info, err := r.direct.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for line := range strings.Lines(info) {
			name, rest, _ := strings.Cut(line, ":calls=")
			if name == "cmdstat_eval" || name == "cmdstat_evalsha" {
				var n int
				_, err := fmt.Sscanf(rest, "%d", &n)
				require.NoError(t, err)
				calls += n
			}
		}
		return calls
	}
	for name, each := range map[string]bool{"an instance each": true, "one instance": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, r *realRedis, handler func() loki.LockHandler) {
				t.Parallel()
				h := hold(t, instance(t, r.handler(), nil), 30*time.Second)
				common, lockers := handler(), make([]*loki.Locker, waiters)
				for i := range lockers {
					if each || i == 0 {
						lockers[i] = instance(t, common, nil)
					} else {
						lockers[i] = lockers[0]
					}
				}
				asking := 1
				if each {
					asking = waiters
				}
				ctx, cancel := context.WithTimeout(t.Context(), holds)
				defer cancel()
				before := evals(r)
				all := make([]*holding, waiters)
				for i, l := range lockers {
					all[i] = begin(ctx, t, l, 30*time.Second, loki.WithWait(loki.UntilDone))
				}
				for _, w := range all {
					require.ErrorIs(t, w.wait(), loki.ErrBusy)
				}
				asked := evals(r) - before
				require.GreaterOrEqual(t, asked, asking)
				require.LessOrEqual(t, asked, asking*pollsIn(holds))
				require.NoError(t, h.end())
				// Not at once: a request that its waiter has given up may land after the release, and is then rolled back.
				eventually(t, func() bool { return len(r.left()) == 0 }, "nothing is left")
			})
		})
	}
	for name, told := range map[string]bool{"jitter of the told": true, "jitter of the polling": false} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				const limit = 9 * time.Second
				h := hold(t, r.locker(alone), time.Hour)
				var waiting []*lokitest.Recorder
				var all []*holding
				for range 20 {
					own := lokitest.NewRecorder(r.primary)
					l := r.locker(alone, func(c *loki.Config) {
						c.Primary = own
						if !told {
							c.Primary = deafen(own)
						}
					})
					waiting = append(waiting, own)
					all = append(all, begin(t.Context(), t, l, time.Minute, loki.WithWait(limit)))
				}
				for _, w := range all {
					require.ErrorIs(t, w.wait(), loki.ErrBusy)
				}
				gaps := make(map[time.Duration]int)
				for _, w := range waiting {
					calls := w.Calls(lokitest.OpLock)
					require.LessOrEqual(t, len(calls), pollsIn(limit))
					require.GreaterOrEqual(t, len(calls), 4)
					gaps[calls[len(calls)-1].Start.Sub(calls[len(calls)-2].Start)]++
				}
				require.Greater(t, len(gaps), 15, "in a bubble only jitter makes them differ")
				require.NoError(t, h.end())
			})
		})
	}
}

func TestCase083_WaitMayBeLongerThanTheExpiry(t *testing.T) {
	t.Parallel()
	const expiry, holds = 900 * time.Millisecond, 1200 * time.Millisecond
	r := startRedis(t)
	a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
	h := hold(t, a, expiry)
	waiter := begin(t.Context(), t, b, expiry, loki.WithWait(patience))
	time.Sleep(holds)
	waiter.requireNotStarted()
	released := time.Now()
	require.NoError(t, h.end())
	waiter.requireStarted()
	require.Less(t, waiter.at.Sub(released), longestPoll+2*time.Second)
	require.NoError(t, waiter.end())
	require.GreaterOrEqual(t, waiter.out.Waited, holds)
	r.requireEmpty()
}

func TestCase085_WaitIsLimitedInAnOutageToo(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	for name, down := range map[string]func(t *testing.T) (primary loki.LockHandler, up func()){
		"stopped": func(t *testing.T) (loki.LockHandler, func()) {
			r := startRedis(t)
			h := r.handler()
			requireRuns(t, instance(t, h, nil))
			r.Stop(t)
			return h, func() { r.Cont(t) }
		},
		"refused": func(t *testing.T) (loki.LockHandler, func()) { return refused(t), func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, up := down(t)
			defer up()
			limits := handlerTimeout(loki.DefaultPrimaryTimeout, 0)
			l := instance(t, primary, nil, limits)
			start := time.Now()
			err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(limit))
			require.Less(t, time.Since(start), limit+2*time.Second)
			require.ErrorIs(t, err, loki.ErrUnavailable)
			require.NotErrorIs(t, err, loki.ErrBusy)

			out := requireRuns(t, instance(t, primary, memoryStore(t), limits), loki.WithWait(limit))
			require.Equal(t, loki.Secondary, out.Store)
			require.Less(t, out.Waited, limit+2*time.Second)
		})
	}
	t.Run("to the instant", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			one, both := r.locker(alone), r.locker()
			r.primary.hang()
			start := time.Now()
			err := one.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(limit))
			require.ErrorIs(t, err, loki.ErrUnavailable)
			require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start), "as long as a call without a wait takes")
			require.Equal(t, loki.DefaultPrimaryTimeout, r.requireRan(both, loki.WithWait(limit)).Waited)
		})
	})
}
