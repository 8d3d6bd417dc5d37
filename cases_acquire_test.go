package loki_test

// Cases 001 to 009: acquisitions of unknown outcome, outages that look like "busy", leases that are over on arrival.

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
)

func TestCase001_LostReplyIsNotBusy(t *testing.T) {
	t.Parallel()
	scripts := []struct {
		name  string
		known bool // the server knows the script: EVALSHA is what records the claim
		match faultproxy.Match
	}{
		{"eval", false, faultproxy.Containing("$4\r\neval\r\n")},
		{"evalsha", true, faultproxy.Containing("$7\r\nevalsha\r\n")},
	}
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			proxy, through := r.proxy()
			l := instance(t, r.handler(through), nil)
			if !s.known {
				require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
			}
			recorder := r.Record(t)
			lost := proxy.LoseReply(s.match)
			out := requireRuns(t, l)
			require.Equal(t, loki.Primary, out.Store)
			requireClosed(t, lost)
			sets := 0
			for _, c := range recorder.Scripted(t) {
				if c.Name() == "set" && c.Args[1] == lockKey {
					sets++
				}
			}
			require.Equal(t, 1, sets, "the claim was recorded once, and recognised when it was asked for again")
			r.requireEmpty()
		})
		t.Run(s.name+" and every repetition", func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			proxy, through := r.proxy()
			l := instance(t, r.handler(through, noRetries), nil)
			if !s.known {
				require.NoError(t, r.direct.ScriptFlush(t.Context()).Err())
			}
			var begun atomic.Bool
			lost := loseReplies(proxy, func(request []byte) bool {
				begun.CompareAndSwap(false, s.match(request))
				return begun.Load() && faultproxy.Containing("\r\neval")(request) // the repetition finds the script known
			})
			err := l.ExecuteWithinLock(t.Context(), 10*time.Second, mustNotRun(t))
			proxy.PassThrough()
			requireClosed(t, lost)
			require.ErrorIs(t, err, loki.ErrUnavailable)
			require.NotErrorIs(t, err, loki.ErrBusy)
			takenBack(t, r, 5*time.Second)
			requireRuns(t, l)
		})
	}
}

// requireClosed demands that what ch tells of has happened.
func requireClosed(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		require.FailNow(t, "the fault that this test is about has not happened")
	}
}

// loseReplies loses the reply of every matching request of one call, however often that is repeated: by the handler over
// a new connection, and by the Locker. The channel is closed when the first one is lost.
func loseReplies(proxy *faultproxy.Proxy, match faultproxy.Match) <-chan struct{} {
	lost := proxy.LoseReply(match)
	for range 7 {
		proxy.LoseReply(match)
	}
	return lost
}

// takenBack waits for the key to go, which has to be long before it would expire by itself.
func takenBack(t *testing.T, r *realRedis, within time.Duration) {
	t.Helper()
	start := time.Now()
	eventually(t, func() bool { return len(r.left()) == 0 }, "the claim is rolled back")
	require.Less(t, time.Since(start), within)
}

func TestCase004_OrphanOfATimedOutAcquireIsTakenBack(t *testing.T) {
	t.Parallel()
	impatient := func(o *redis.Options) { o.ReadTimeout, o.MaxRetries, o.DialerRetries = 200*time.Millisecond, -1, 1 }

	t.Run("the reply is late", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		proxy, through := r.proxy()
		a, b := instance(t, r.handler(through, impatient), nil), instance(t, r.handler(), nil)
		recorder := r.Record(t)
		proxy.Delay(400 * time.Millisecond)
		err := a.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		proxy.PassThrough()
		takenBack(t, r, 5*time.Second)
		require.Contains(t, scriptedWrites(recorder.Scripted(t)), "set "+lockKey, "there was an orphan")
		requireRuns(t, b)
	})
	t.Run("the request is late", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		proxy, through := r.proxy()
		a, b := instance(t, r.handler(through, impatient), nil), instance(t, r.handler(), nil)
		recorder := r.Record(t)
		proxy.BlackHole()
		err := a.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		r.requireEmpty()
		proxy.PassThrough() // now it arrives, and so does whatever was sent after it, in any order
		eventually(t, func() bool {
			return len(scriptedWrites(recorder.Scripted(t))) > 0
		}, "the request has arrived")
		takenBack(t, r, 5*time.Second)
		requireRuns(t, b)
	})
}

func TestCase005_OutageIsNotBusy(t *testing.T) {
	t.Parallel()
	l := instance(t, refused(t), nil)
	err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
	require.NotErrorIs(t, err, loki.ErrBusy)
	require.ErrorIs(t, err, loki.ErrUnavailable)
	var opErr *net.OpError
	require.ErrorAs(t, err, &opErr)
	require.Equal(t, "dial", opErr.Op)
	require.Error(t, loki.IgnoreBusy(err))
}

func TestCase006_MissingPermissionIsNeitherBusyNorAnOutage(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	require.NoError(t, r.direct.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-set").Err())
	limited := func(o *redis.Options) { o.Username, o.Password = "limited", "secret" }
	secondary := memoryStore(t)

	for name, l := range map[string]*loki.Locker{
		"alone":            instance(t, r.handler(limited), nil),
		"with a secondary": instance(t, r.handler(limited), secondary),
	} {
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.ErrorContains(t, err, "NOPERM", name)
		require.NotErrorIs(t, err, loki.ErrBusy, name)
		require.NotErrorIs(t, err, loki.ErrUnavailable, name)
		var handlerErr *loki.HandlerError
		require.ErrorAs(t, err, &handlerErr, name)
		require.Equal(t, loki.Primary, handlerErr.Store, name)
	}
	require.Empty(t, secondary.Calls(), "a mistake was taken for an outage")
	r.requireEmpty()
}

func TestCase007_SomebodyRunsWhenThePrimaryFailsForAMoment(t *testing.T) {
	t.Parallel()
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		const instances = 5
		r := startRedis(t)
		var ran, skipped atomic.Int32
		begin := make(chan struct{})
		results := make(chan error, instances)
		for range instances {
			faults := lokitest.NewFaults(r.handler())
			faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
			l := instance(t, faults, s)
			go func() {
				<-begin
				results <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					ran.Add(1)
					// Until all the others have been told: then none of them came too late to meet it.
					for deadline := time.Now().Add(patience); skipped.Load() < instances-1 && time.Now().Before(deadline); {
						time.Sleep(time.Millisecond)
					}
					return nil
				})
			}()
		}
		close(begin)
		for range instances {
			err := <-results
			if err != nil {
				require.ErrorIs(t, err, loki.ErrBusy)
				skipped.Add(1)
			}
		}
		require.EqualValues(t, 1, ran.Load())
		s.requireEmpty()
		r.requireEmpty()
	})
}

func TestCase009_LeaseIsCountedFromTheAttemptThatWasGranted(t *testing.T) {
	t.Parallel()
	const expiry = time.Second
	r := startRedis(t)
	log := &eventLog{}
	a, b, c := instance(t, r.handler(), nil), instance(t, r.handler(), nil, watched(log)), instance(t, r.handler(), nil)

	holder := hold(t, a, 30*time.Second)
	waiter := begin(t.Context(), t, b, expiry, loki.WithWait(patience))
	time.Sleep(expiry + 100*time.Millisecond) // a lease that began with the first attempt would be over by now
	released := time.Now()
	require.NoError(t, holder.end())
	waiter.requireStarted()
	left := r.pttl()
	require.LessOrEqual(t, left, expiry)
	require.GreaterOrEqual(t, left, expiry-time.Since(released)-2*time.Millisecond)

	for end := time.Now().Add(expiry); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		requireSkipped(t, c)
	}
	require.NoError(t, waiter.ctx.Err())
	require.NoError(t, waiter.end())
	require.GreaterOrEqual(t, waiter.out.Waited, expiry)
	require.Empty(t, log.of(loki.KindRenewFailed))
	require.NotEmpty(t, log.of(loki.KindRenewed))
	r.requireEmpty()
}
