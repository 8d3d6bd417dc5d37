package loki_test

// Cases 016 to 024: a lease that is lost, or must not be, while its holder goes on.

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
)

func TestCase016_OneFailedRenewalIsNotTheLast(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*faultproxy.Proxy){
		"its reply is lost": func(p *faultproxy.Proxy) { loseReplies(p, faultproxy.Containing(lockKey)) },
		"it is not applied": func(p *faultproxy.Proxy) {
			for range 2 { // the second one, if the first is late enough for the Locker to call again
				p.Answer(faultproxy.Containing(lockKey), "-LOADING not now\r\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const expiry = 2 * time.Second
			r := startRedis(t)
			proxy, through := r.proxy()
			log := &eventLog{}
			a, b := instance(t, r.handler(through, noRetries), nil, watched(log)), instance(t, r.handler(), nil)
			h := hold(t, a, expiry)
			fail(proxy)
			eventually(t, func() bool { return len(log.of(loki.KindRenewFailed)) > 0 }, "a renewal fails")
			proxy.PassThrough()
			for end := time.Now().Add(2 * expiry); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				require.Positive(t, r.pttl())
				requireSkipped(t, b)
			}
			require.NoError(t, h.ctx.Err())
			require.NoError(t, h.end())
			require.Len(t, log.of(loki.KindRenewFailed), 1)
			require.GreaterOrEqual(t, len(log.of(loki.KindRenewed)), 2)
			r.requireEmpty()
		})
	}
}

func TestCase019_LossIsToldToTheClosure(t *testing.T) {
	t.Parallel()
	const expiry = 1500 * time.Millisecond
	r := startRedis(t)
	proxy, through := r.proxy()
	l := instance(t, r.handler(through), nil, handlerTimeout(time.Second, 0))
	start := time.Now()
	var told time.Time
	err := l.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
		proxy.BlackHole()
		select {
		case <-ctx.Done():
			told = time.Now()
		case <-time.After(patience):
			return errFn
		}
		require.ErrorIs(t, context.Cause(ctx), loki.ErrLockLost)
		require.ErrorIs(t, context.Cause(ctx), loki.ErrExpired)
		return nil
	})
	require.ErrorIs(t, err, loki.ErrLockLost)
	require.ErrorIs(t, err, loki.ErrExpired)
	require.NotErrorIs(t, err, errFn, "fn was not told")
	require.Less(t, told.Sub(start), expiry, "fn was told when the lock was already free")
	require.Greater(t, told.Sub(start), expiry/2)
	proxy.PassThrough()
}

func TestCase020_HolderThatWasCutOffYieldsWhenItComesBack(t *testing.T) {
	t.Parallel()
	const expiry = 900 * time.Millisecond
	r := startRedis(t)
	proxy, through := r.proxy()
	a := instance(t, r.handler(through, func(o *redis.Options) { o.ReadTimeout = patience }), nil)
	b, c := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
	cut := hold(t, a, expiry)
	claim := r.token()
	proxy.BlackHole()
	next := begin(t.Context(), t, b, 30*time.Second, loki.WithWait(patience))
	next.requireStarted()
	value := r.value()
	require.NotContains(t, value, claim)
	cut.requireLost(loki.ErrExpired) // before B, whatever the order in which this test looks
	recorder := r.Record(t)

	proxy.PassThrough() // A's renewals arrive, which were sent into the hole, and its release
	require.ErrorIs(t, cut.end(), loki.ErrLockLost)
	require.NoError(t, a.Close(t.Context()))
	late := 0
	eventually(t, func() bool {
		late = 0
		for _, command := range recorder.Sent(t) {
			if len(command.Args) > 5 && command.Args[3] == lockKey && command.Args[5] == claim {
				late++
			}
		}
		return late >= 2
	}, "a renewal and a release of A have arrived")
	require.Equal(t, value, r.value())
	requireSkipped(t, c)
	require.NoError(t, next.ctx.Err())
	require.NoError(t, next.end())
	r.requireEmpty()
}

func TestCase021_ExpiryShorterThanTheWork(t *testing.T) {
	t.Parallel()
	const (
		instances = 3
		expiry    = 900 * time.Millisecond
		work      = 1200 * time.Millisecond
		whole     = 2 * time.Second
	)
	run := func(t *testing.T, ran func(error), opts ...loki.Option) (most int) {
		r := startRedis(t)
		var m meter
		results := make(chan error, 1000)
		done := make(chan struct{}, instances)
		for range instances {
			l := instance(t, r.handler(), nil)
			go func() {
				defer func() { done <- struct{}{} }()
				for end := time.Now().Add(whole); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					var out loki.Outcome
					err := l.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
						m.enter()
						defer m.leave()
						time.Sleep(work)
						return nil
					}, append(opts, loki.WithOutcome(&out))...)
					if out.Ran {
						results <- err
					}
				}
			}()
		}
		for range instances {
			<-done
		}
		close(results)
		for err := range results {
			ran(err)
		}
		n, most := m.counts()
		require.GreaterOrEqual(t, n, 2)
		r.requireEmpty()
		return most
	}
	t.Run("renewed", func(t *testing.T) {
		t.Parallel()
		most := run(t, func(err error) { require.NoError(t, err) })
		require.Equal(t, 1, most)
	})
	t.Run("not renewed", func(t *testing.T) {
		t.Parallel()
		most := run(t, func(err error) { require.ErrorIs(t, err, loki.ErrExpired) }, loki.WithoutRenewal())
		require.Greater(t, most, 1, "closures that outlive their expiry overlap: if not, this test shows nothing")
	})
}

func TestCase022_FailingSecondaryDoesNotTakeThePrimaryAlong(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]lokitest.Fault{
		"fails":       {Err: errDown},
		"hangs":       {Before: lokitest.Pause{For: patience}},
		"is mistaken": {Err: errFn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const expiry = 900 * time.Millisecond
			r, secondary, log := startRedis(t), memoryStore(t), &eventLog{}
			secondary.faults.Set(lokitest.OpLock, fault)
			secondary.faults.Set(lokitest.OpExtend, fault)
			short := handlerTimeout(patience, 100*time.Millisecond)
			a, b := instance(t, r.handler(), secondary, watched(log), short), instance(t, r.handler(), secondary, short)
			h := hold(t, a, expiry)
			for end := time.Now().Add(2 * expiry); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				requireSkipped(t, b)
			}
			require.NoError(t, h.ctx.Err())
			require.NoError(t, h.end())
			require.Empty(t, log.of(loki.KindLost))
			kind := loki.KindMirrorFailed
			if fault.Err == errFn { //nolint:errorlint // identity: which of the faults above it is
				kind = loki.KindRefused
			}
			require.NotEmpty(t, log.of(kind))
			reported := slices.DeleteFunc(slices.Concat(log.of(loki.KindDown), log.of(loki.KindRefused)), func(e loki.Event) bool { return e.Level < slog.LevelWarn })
			require.Len(t, reported, 1, "reported once, not with every try")
			require.NotEmpty(t, secondary.Calls(lokitest.OpLock))
			r.requireEmpty()
		})
	}
}

func TestCase023_PrimaryRestartsEmptyDuringARun(t *testing.T) {
	t.Parallel()
	flush := func(t *testing.T, r *realRedis) { require.NoError(t, r.direct.FlushAll(t.Context()).Err()) }

	t.Run("sync", func(t *testing.T) {
		t.Parallel()
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			a, b := instance(t, r.handler(), s, mode(loki.MirrorSync)), instance(t, r.handler(), s, mode(loki.MirrorSync))
			expiry := s.expiry
			h := hold(t, a, expiry)
			flush(t, r)
			for end := time.Now().Add(expiry); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				requireSkipped(t, b)
			}
			require.NoError(t, h.ctx.Err())
			require.NoError(t, h.end())
			s.requireEmpty()
			requireRuns(t, b)
			r.requireEmpty()
		})
	})
	t.Run("async", func(t *testing.T) {
		t.Parallel()
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			a, b := instance(t, r.handler(), s), instance(t, r.handler(), s)
			h := hold(t, a, max(s.expiry, 3*time.Second)) // not renewed before B comes
			s.requireRow("job")
			token := r.token()
			flush(t, r)
			next := hold(t, b, time.Minute) // the primary knows no better
			next.requireLost(loki.ErrConflict)
			require.Less(t, time.Since(next.at), loki.MirrorGrace+3*time.Second)
			require.ErrorIs(t, next.end(), loki.ErrConflict)
			require.NoError(t, h.ctx.Err())
			eventually(t, func() bool { return r.token() == token }, "A takes the primary again")
			requireSkipped(t, b)
			require.NoError(t, h.end())
			s.requireEmpty()
			r.requireEmpty()
		})
	})
	t.Run("no row", func(t *testing.T) {
		t.Parallel()
		const expiry = 3 * time.Second
		r := startRedis(t)
		a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
		h := hold(t, a, expiry)
		flush(t, r)
		h.requireLost(loki.ErrNotHeld)
		require.Less(t, time.Since(h.at), expiry*2/3, "at the next renewal, not later")
		requireRuns(t, b)
		require.ErrorIs(t, h.end(), loki.ErrNotHeld)
		r.requireEmpty()
	})
}

func TestCase024_HungClosureIsNotRenewedForEver(t *testing.T) {
	t.Parallel()
	const deadline, expiry = time.Second, 900 * time.Millisecond
	r := startRedis(t)
	a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	hung := begin(ctx, t, a, expiry)
	hung.requireStarted()
	next := begin(t.Context(), t, b, 30*time.Second, loki.WithWait(loki.UntilDone))
	next.requireStarted()
	require.Greater(t, next.at.Sub(start), deadline, "renewed as long as the caller wants it")
	require.Less(t, next.at.Sub(start), deadline+expiry+2*time.Second)
	err := hung.end()
	require.ErrorIs(t, err, loki.ErrLockLost)
	require.ErrorIs(t, err, loki.ErrExpired)
	require.NoError(t, next.end())
	r.requireEmpty()
}
