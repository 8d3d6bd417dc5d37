package loki_test

// Cases 094 to 101: processes that end or are killed, and jobs that run by the clock.

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
)

func TestCase094_SignalReleases(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	w := startWorker(t, "hold", "REDIS="+r.Addr(), "EXPIRY=1m")
	w.requireSays("started")
	l := instance(t, r.handler(), nil)
	requireSkipped(t, l)
	require.NoError(t, w.signal(syscall.SIGTERM))
	start := time.Now()
	next := begin(t.Context(), t, l, 30*time.Second, loki.WithWait(patience))
	next.requireStarted()
	require.Less(t, time.Since(start), 5*time.Second)
	require.NoError(t, next.end())
	w.requireSays("returned context canceled")
	require.NoError(t, w.wait())
	r.requireEmpty()
}

func TestCase096_ReleasedBeforeTheOthersTick(t *testing.T) {
	t.Parallel()
	const minHold = 600 * time.Millisecond
	tick := func(t *testing.T, r *realRedis, opts ...loki.Option) (ran int) {
		for range 3 { // one after the other: that much do their clocks differ
			l := instance(t, r.handler(), nil)
			err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
				ran++
				return nil
			}, opts...)
			require.NoError(t, loki.IgnoreBusy(err))
		}
		return ran
	}
	t.Run("by default", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, 3, tick(t, startRedis(t)))
	})
	t.Run("with a minimum hold", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		start := time.Now()
		require.Equal(t, 1, tick(t, r, loki.WithMinHold(minHold)))
		require.Less(t, time.Since(start), minHold, "the machine is too slow for this test")
		next := begin(t.Context(), t, instance(t, r.handler(), nil), time.Minute, loki.WithWait(patience))
		next.requireStarted()
		require.GreaterOrEqual(t, next.at.Sub(start), minHold)
		require.Less(t, next.at.Sub(start), minHold+3*time.Second, "and not until its expiry")
		require.NoError(t, next.end())
		r.requireEmpty()
	})
}

func TestCase097_CrashLeavesTheLockForItsExpiry(t *testing.T) {
	t.Parallel()
	const expiry = 1500 * time.Millisecond
	r := startRedis(t)
	w := startWorker(t, "hold", "REDIS="+r.Addr(), "EXPIRY="+expiry.String())
	w.requireSays("started")
	b := instance(t, r.handler(), nil)
	for end := time.Now().Add(expiry + expiry/2); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		requireSkipped(t, b) // renewed while the process lives
	}
	require.NoError(t, w.signal(syscall.SIGKILL))
	require.Error(t, w.wait())
	killed := time.Now()
	left := r.pttl()
	require.Positive(t, left)
	require.LessOrEqual(t, left, expiry)
	next := begin(t.Context(), t, b, 30*time.Second, loki.WithWait(patience))
	next.requireStarted()
	require.GreaterOrEqual(t, next.at.Sub(killed), left-5*time.Millisecond)
	require.Less(t, next.at.Sub(killed), expiry+longestPoll+2*time.Second)
	require.NoError(t, next.end())
	r.requireEmpty()
}

// What is left when nobody releases: the row does not outlive the key by more than the time that a request takes.
func TestCase097_RowAndKeyEndTogether(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			h := hold(t, instance(t, r.handler(), s, mode(m)), s.expiry)
			s.requireRow("job")
			for end := time.Now().Add(s.expiry); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				row := s.remaining("job")
				key := r.pttl() // read after it, so that a renewal in between can only make it longer
				read := time.Now()
				after := s.remaining("job")
				if after > row { // renewed in between: this sample says nothing
					continue
				}
				took, transit := time.Since(read), time.Duration(0)
				for _, call := range s.Calls(lokitest.OpLock) {
					transit = max(transit, call.End.Sub(call.Start))
				}
				require.LessOrEqual(t, after, key+took+transit+100*time.Millisecond)
			}
			require.NoError(t, h.end())
			r.requireEmpty()
			s.requireEmpty()
		})
	})
}

func TestCase098_KeyAndExpiryAreOneCommand(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	proxy, through := r.proxy()
	l := instance(t, r.handler(through, noRetries), nil)
	requireRuns(t, l)
	recorder := r.Record(t)
	for range 200 {
		// The acquisition: the releases that go on behind the calls before it do not name the expiry.
		lost := loseReplies(proxy, faultproxy.Containing("\r\n4999\r\n"))
		err := l.ExecuteWithinLock(t.Context(), 4999*time.Millisecond, mustNotRun(t))
		proxy.PassThrough()
		requireClosed(t, lost)
		require.ErrorIs(t, err, loki.ErrUnavailable)
		keys, err := r.direct.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			require.NotEqual(t, time.Duration(-1), r.direct.PTTL(t.Context(), key).Val(), "%s never expires", key)
		}
	}
	for _, c := range recorder.Sent(t) {
		require.Contains(t, []string{"evalsha", "eval", "keys", "pttl"}, c.Name())
	}
	sets := 0
	for _, c := range recorder.Scripted(t) {
		switch c.Name() {
		case "set":
			require.Len(t, c.Args, 5)
			require.Equal(t, "PX", c.Args[3])
			if c.Args[1] == lockKey {
				sets++
			}
		case "get", "del", "pexpire", "pttl", "time", "getex", "publish":
		default:
			require.Fail(t, "what is this?", "%q", c.Args)
		}
	}
	require.Greater(t, sets, 100, "the claims were recorded though nobody was told")
	takenBack(t, r, 5*time.Second)
}

func TestCase101_FailedTaskDoesNotBlockItself(t *testing.T) {
	t.Parallel()
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		r := startRedis(t)
		a, b := instance(t, r.handler(), s), instance(t, r.handler(), s)
		failure := fmt.Errorf("wrapped: %w", errFn)
		var ran atomic.Int32
		for range 2 {
			err := a.ExecuteWithinLock(t.Context(), time.Hour, func(context.Context) error {
				ran.Add(1)
				s.requireRow("job")
				return failure
			})
			require.Same(t, failure, err)
			require.ErrorIs(t, err, errFn)
		}
		require.EqualValues(t, 2, ran.Load())
		requireRuns(t, b)
		r.requireEmpty()
		s.requireEmpty()
	})
}
