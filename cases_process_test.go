package loki_test

// Cases 087 to 092: one process that calls itself, shares a Locker, panics, or closes what it still needs.

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
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
			if opts == nil {
				require.Len(t, log.of(loki.KindReleased), ran, "each winner has released")
			} else { // some were handed over
				require.Less(t, len(log.of(loki.KindReleased)), ran)
				require.NotEmpty(t, log.of(loki.KindReleased))
			}
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
			require.Equal(t, result, h.endWith(result))
			require.Less(t, time.Since(start), patience)
			eventually(t, func() bool {
				for _, e := range log.of(loki.KindRefused) {
					if e.Op == "release" && errors.Is(e.Err, redis.ErrClosed) {
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
