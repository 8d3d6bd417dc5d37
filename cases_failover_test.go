package loki_test

// Cases 073 to 077, 110 and 111: a primary that restarts, refuses, or is not there, and what both stores are told.

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/redishandler"
)

func TestCase073_ScriptsThatAreGoneAreSentAgain(t *testing.T) {
	t.Parallel()
	const expiry = 900 * time.Millisecond
	r, log := startRedis(t), &eventLog{}
	l := instance(t, r.handler(), nil, watched(log))
	h := hold(t, l, expiry)
	for i := range 3 {
		require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
		eventually(t, func() bool { return len(log.of(loki.KindRenewed)) > i }, "it is renewed")
	}
	require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
	require.NoError(t, h.end())
	r.requireEmpty()
	require.Empty(t, log.of(loki.KindRenewFailed))
	require.Empty(t, log.of(loki.KindReleaseFailed))
}

func TestCase074_OutOfMemory(t *testing.T) {
	t.Parallel()
	const expiry = 900 * time.Millisecond
	r, log := startRedis(t), &eventLog{}
	a, b := instance(t, r.handler(), nil, watched(log)), instance(t, r.handler(), nil)
	h := hold(t, a, expiry)
	require.NoError(t, r.direct.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, r.direct.ConfigSet(t.Context(), "maxmemory", "1kb").Err())

	err := b.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithResource("other"))
	require.ErrorContains(t, err, "OOM")
	require.ErrorIs(t, err, loki.ErrUnavailable)
	require.NotErrorIs(t, err, loki.ErrBusy)
	requireSkipped(t, b) // what is held is still known

	eventually(t, func() bool { return len(log.of(loki.KindRenewed)) >= 3 }, "A is renewed")
	require.NoError(t, h.ctx.Err())
	require.NoError(t, h.end())
	require.Empty(t, log.of(loki.KindRenewFailed))
	require.Empty(t, log.of(loki.KindReleaseFailed))
	r.requireEmpty()
	require.Equal(t, loki.Secondary, requireRuns(t, instance(t, r.handler(), memoryStore(t))).Store)
}

func TestCase075_ReleaseThatIsRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	const expiry = 20 * time.Second
	r, log := startRedis(t), &eventLog{}
	proxy, through := r.proxy()
	a, b := instance(t, r.handler(through), nil, watched(log)), instance(t, r.handler(), nil)
	for _, result := range []error{nil, errFn} {
		h := hold(t, a, expiry)
		refused := proxy.Answer(faultproxy.Containing(lockKey), "-MISCONF Redis is configured to save RDB snapshots\r\n")
		err := h.endWith(result)
		if result == nil {
			require.NoError(t, err)
		} else {
			require.Same(t, result, err)
		}
		requireClosed(t, refused)
		takenBack(t, r, expiry/2)
		requireRuns(t, b)
	}
	eventually(t, func() bool { return len(log.of(loki.KindReleaseFailed)) == 2 }, "the refusals are told")
	require.ErrorContains(t, log.of(loki.KindReleaseFailed)[0].Err, "MISCONF")
}

func TestCase077_ConnectionsThatWereCutAreNoOutage(t *testing.T) {
	t.Parallel()
	r, secondary, log := startRedis(t), memoryStore(t), &eventLog{}
	l := instance(t, r.handler(), secondary, watched(log))
	for range 20 {
		require.Equal(t, loki.Primary, requireRuns(t, l).Store)
		require.NoError(t, r.direct.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	}
	require.Empty(t, log.of(loki.KindFellBack))

	t.Run("EOF without retries", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() { // closes each connection after its first request, in good order
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 64<<10))
				_ = conn.Close()
			}
		}()
		client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), MaxRetries: -1, DialerRetries: 1})
		t.Cleanup(func() { _ = client.Close() })
		handler := redishandler.New(client)

		err = instance(t, handler, nil).ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t))
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.Equal(t, loki.Secondary, requireRuns(t, instance(t, handler, memoryStore(t))).Store)
	})
}

func TestCase110_PrimaryIsDownAtBuildTime(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			const each = 50 * time.Millisecond
			r := startRedis(t)
			proxy, through := r.proxy()
			proxy.Refuse()
			var (
				counts meter
				mu     sync.Mutex
				stores []string
			)
			callers := sync.WaitGroup{}
			stop := make(chan struct{})
			for range 2 {
				l := instance(t, r.handler(through, noRetries), s, mode(m))
				callers.Go(func() {
					for {
						var out loki.Outcome
						err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
							counts.enter()
							defer counts.leave()
							select {
							case <-time.After(each):
							case <-ctx.Done():
							}
							return nil
						}, loki.WithOutcome(&out))
						if loki.IgnoreBusy(err) != nil && (m == loki.MirrorSync || !assertLost(t, err)) {
							t.Error(err)
						}
						if out.Ran {
							mu.Lock()
							stores = append(stores, string(out.Store))
							mu.Unlock()
						}
						select {
						case <-stop:
							return
						case <-time.After(each / 5):
						}
					}
				})
			}
			ran := func(store string) (n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range stores {
					if s == store {
						n++
					}
				}
				return n
			}
			eventually(t, func() bool { return ran("secondary") >= 5 }, "calls run through the secondary")
			require.Zero(t, ran("primary"))
			proxy.PassThrough()
			eventually(t, func() bool { return ran("primary") >= 5 }, "calls run through the primary again")
			close(stop)
			callers.Wait()
			_, most := counts.counts()
			if m == loki.MirrorSync {
				require.Equal(t, 1, most)
			} else { // one may be back at the primary, its row on the way, while the other's breaker still sends it to the secondary
				require.LessOrEqual(t, most, 2)
			}
			eventually(t, func() bool { return len(r.left()) == 0 }, "nothing is left in the primary")
			s.requireEmpty()
		})
	})
}

func TestCase111_ExpiryOfTheCallWins(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			l := instance(t, r.handler(), s, mode(m))
			for _, expiry := range []time.Duration{20 * time.Second, 5 * time.Minute, 30 * time.Second} {
				asked := time.Now()
				h := hold(t, l, expiry)
				s.requireRow("job")
				for name, left := range map[string]time.Duration{"key": r.pttl(), "row": s.remaining("job")} {
					require.LessOrEqual(t, left, expiry, name)
					require.GreaterOrEqual(t, left, expiry-time.Since(asked)-2*time.Millisecond, name)
				}
				require.NoError(t, h.end())
				s.requireEmpty()
			}
			r.requireEmpty()
		})
	})
}
