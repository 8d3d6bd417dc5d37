package loki_test

// Cases 087 to 101: one process that calls itself, panics, shuts down, dies; and jobs that run by the clock.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
)

func TestCase087_NestedCallIsTold(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	r := startRedis(t)
	recorder := lokitest.NewRecorder(r.handler())
	l := instance(t, recorder, nil)
	require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
		token := r.token()
		for _, wait := range []time.Duration{0, limit, loki.UntilDone} { // at once, whatever the limit
			start := time.Now()
			err := l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t), loki.WithWait(wait))
			require.ErrorIs(t, err, loki.ErrBusy)
			var busy *loki.BusyError
			require.ErrorAs(t, err, &busy)
			require.True(t, busy.Nested)
			require.ErrorContains(t, err, "nested")
			require.Less(t, time.Since(start), limit)
		}
		// Whoever does not pass the context on is not recognised.
		start := time.Now()
		err := l.ExecuteWithinLock(context.WithoutCancel(t.Context()), 30*time.Second, mustNotRun(t), loki.WithWait(limit/4))
		require.ErrorIs(t, err, loki.ErrBusy)
		var busy *loki.BusyError
		require.ErrorAs(t, err, &busy)
		require.False(t, busy.Nested)
		require.GreaterOrEqual(t, time.Since(start), limit/4)
		requireSkipped(t, l)

		requireRuns(t, l, loki.WithResource("another lock"))
		require.NoError(t, ctx.Err())
		require.Equal(t, token, r.token())
		return nil
	}))
	released := 0
	for _, call := range recorder.Calls(lokitest.OpRelease) {
		if call.Claim.Key == "job" {
			released++
		}
	}
	require.Equal(t, 1, released)
	r.requireEmpty()
	requireRuns(t, l)
}

func TestCase088_OneLockerForManyGoroutines(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]loki.Option{"skipping": nil, "waiting": {loki.WithWait(loki.UntilDone)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const callers, loops = 50, 20
			r, log := startRedis(t), &eventLog{}
			l := instance(t, r.handler(), nil, watched(log))
			var m meter
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for range loops {
						err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
							m.enter()
							defer m.leave()
							time.Sleep(time.Millisecond)
							return nil
						}, opts...)
						if err != nil && (opts != nil || !errors.Is(err, loki.ErrBusy)) {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			ran, most := m.counts()
			require.Equal(t, 1, most)
			if opts != nil {
				require.Equal(t, callers*loops, ran)
			}
			require.Positive(t, ran)
			r.requireEmpty()
			require.NoError(t, l.Close(t.Context()))
			require.Empty(t, log.of(loki.KindReleaseFailed))
			require.Empty(t, log.of(loki.KindLost))
			require.Len(t, log.of(loki.KindReleased), ran, "each winner has released")
		})
	}
}

// answers is a handler that gives the same answer to everything.
type answers struct {
	held bool
	err  error
}

func (a *answers) Lock(context.Context, loki.Claim) (bool, error) { return a.held, a.err }
func (a *answers) Release(context.Context, loki.Claim) error      { return a.err }

// grants is answers with an answer in full, which is zero.
type grants struct{ answers }

func (g *grants) Grant(context.Context, loki.Claim) (loki.Grant, error) { return loki.Grant{}, g.err }

func TestCase089_HandlersThatAreNilOrAnswerNothing(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]loki.LockHandler{
		"nil": nil, "typed nil": (*answers)(nil), "typed nil of ours": (*redishandler.Handler)(nil),
		"zero of ours": &redishandler.Handler{}, "nil client": redishandler.New((*redis.Client)(nil)),
		"nil of SQL": (*mssqlhandler.Handler)(nil), "zero of SQL": &mssqlhandler.Handler{}, "nil database": mssqlhandler.New(nil),
		"nil of memory": (*memhandler.Handler)(nil),
	} {
		l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(h).Build()
		require.Error(t, err, name)
		require.Nil(t, l, name)
		require.ErrorContains(t, err, "primary lock handler", name)
		if h != nil {
			_, err = loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(memhandler.New()).SetSecondaryLockHandler(h).Build()
			require.ErrorContains(t, err, "secondary lock handler", name)
		}
		require.Error(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), "the Locker that there is none of")
	}
	for name, c := range map[string]struct {
		handler loki.LockHandler
		want    error
	}{
		"no and an error":  {&answers{err: errFn}, errFn},
		"no":               {&answers{}, loki.ErrBusy},
		"zero grant":       {&grants{}, loki.ErrBusy},
		"grant and error":  {&grants{answers{err: errFn}}, errFn},
		"yes and an error": {&answers{held: true, err: errFn}, errFn},
	} {
		err := instance(t, c.handler, nil).ExecuteWithinLock(t.Context(), 300*time.Millisecond, mustNotRun(t))
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestCase090_PanicReleases(t *testing.T) {
	t.Parallel()
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		r := startRedis(t)
		recorder := lokitest.NewRecorder(r.handler())
		a, b := instance(t, recorder, s), instance(t, r.handler(), s)
		expiry := s.expiry
		value := struct{ reason string }{"the user's own"}
		require.PanicsWithValue(t, value, func() {
			_ = a.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
				s.requireRow("job")
				eventually(t, func() bool { return len(recorder.Calls(lokitest.OpExtend)) > 0 }, "it is renewed")
				panic(value)
			})
		})
		r.requireEmpty()
		s.requireEmpty()
		requireRuns(t, b)
		renewals := len(recorder.Calls(lokitest.OpExtend))
		time.Sleep(expiry) // nothing more comes
		require.Len(t, recorder.Calls(lokitest.OpExtend), renewals)
		r.requireEmpty()
		s.requireEmpty()
	})
}

func TestCase091_PanicOfAHandlerInTheBackground(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		for _, op := range []lokitest.Op{lokitest.OpLock, lokitest.OpRelease} {
			r.secondary.faults.Set(op, lokitest.Fault{Panic: "bad connection"})
		}
		for i := range 10 {
			err := l.ExecuteWithinLock(t.Context(), 2*time.Second, func(ctx context.Context) error {
				synctest.Wait() // the mirror write has panicked
				require.NoError(t, ctx.Err())
				if i%2 == 0 {
					return errFn
				}
				return nil
			})
			if i%2 == 0 {
				require.ErrorIs(t, err, errFn)
				require.NotErrorIs(t, err, loki.ErrLockLost)
			} else {
				require.NoError(t, err)
			}
		}
		time.Sleep(time.Minute)
		panicked := 0
		for _, call := range r.secondary.Calls() {
			if call.End.IsZero() {
				panicked++
			}
		}
		require.GreaterOrEqual(t, panicked, 20, "each mirror write and each of their releases")
		require.Len(t, r.events(loki.KindPanic), panicked, "one panic, one event")
		require.ErrorContains(t, r.events(loki.KindPanic)[0].Err, "bad connection")
	})
}

func TestCase092_ClientClosedBeforeTheRelease(t *testing.T) {
	t.Parallel()
	onClosed := func(t *testing.T, s loki.LockHandler, closeDB func() error) {
		r, log := startRedis(t), &eventLog{}
		client := r.Client(t)
		l := instance(t, redishandler.New(client), s, watched(log))
		for _, result := range []error{errFn, nil} {
			if result == nil { // a closed client stays closed
				client = r.Client(t)
				l = instance(t, redishandler.New(client), nil, watched(log))
			}
			h := hold(t, l, 1200*time.Millisecond)
			require.NoError(t, client.Close())
			require.NoError(t, closeDB())
			start := time.Now()
			require.Equal(t, result, h.endWith(result)) //nolint:testifylint // untouched
			require.Less(t, time.Since(start), patience)
			eventually(t, func() bool {
				for _, e := range log.of(loki.KindReleaseFailed) {
					if errors.Is(e.Err, redis.ErrClosed) {
						return true
					}
				}
				return false
			}, "the release is told as failed")
			eventually(t, func() bool { return len(r.left()) == 0 }, "the key has expired")
		}
	}
	t.Run("stub", func(t *testing.T) {
		t.Parallel()
		db := newStubSQL().open(t)
		onClosed(t, mssqlhandler.New(db), db.Close)
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		db := openSQL(t)
		onClosed(t, newSQLKeys(db), db.Close)
	})
}

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
				took := time.Since(read)
				require.LessOrEqual(t, after, key+took+100*time.Millisecond)
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
		lost := proxy.LoseReply(faultproxy.Containing("\r\n4999\r\n"))
		err := l.ExecuteWithinLock(t.Context(), 4999*time.Millisecond, mustNotRun(t))
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
			require.Same(t, failure, err) //nolint:testifylint // unchanged: the very same error
			require.ErrorIs(t, err, errFn)
		}
		require.EqualValues(t, 2, ran.Load())
		requireRuns(t, b)
		r.requireEmpty()
		s.requireEmpty()
	})
}
