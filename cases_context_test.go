package loki_test

// Cases 033 to 039: a context that is cancelled, expired, or ignored by whoever gets it.

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	sqlxdb "github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestCase033_CancelledCallerReleases(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			a, b := instance(t, r.handler(), s, mode(m)), instance(t, r.handler(), s, mode(m))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := a.ExecuteWithinLock(ctx, 5*time.Minute, func(ctx context.Context) error {
				s.requireRow("job")
				cancel()
				return ctx.Err()
			})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, loki.ErrLockLost)
			r.requireEmpty()
			s.requireEmpty()
			requireRuns(t, b)
		})
	})
}

func TestCase035_ReleaseHasALimitOfItsOwn(t *testing.T) {
	r := startRedis(t)
	proxy, through := r.proxy()
	log := &eventLog{}
	l := instance(t, r.handler(through), nil, watched(log), handlerTimeout(loki.DefaultPrimaryTimeout, 0))
	requireRuns(t, l)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now()
	err := l.ExecuteWithinLock(ctx, 4*time.Second, func(ctx context.Context) error {
		proxy.BlackHole()
		cancel()
		start = time.Now()
		return ctx.Err()
	})
	took := time.Since(start)
	require.ErrorIs(t, err, context.Canceled)
	require.GreaterOrEqual(t, took, loki.DefaultPrimaryTimeout, "the first attempt was waited for")
	require.Less(t, took, 5*time.Second)
	eventually(t, func() bool { return len(log.of(loki.KindReleaseFailed)) == 1 }, "the failed release is told")
	proxy.PassThrough()
	eventually(t, func() bool { return len(r.left()) == 0 }, "the release is tried again")
	proxy.Disconnect() // what it had for the connections that were opened meanwhile is not the library's
	requireGoroutines(t, before)
}

func TestCase036_CancelledContextTakesNothing(t *testing.T) {
	t.Parallel()
	r, secondary := startRedis(t), memoryStore(t)
	lockers := map[string]*loki.Locker{
		"primary up":   instance(t, r.handler(), secondary),
		"primary down": instance(t, refused(t), secondary),
	}
	recorder := r.Record(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errFn)
	for name, l := range lockers {
		for _, wait := range []time.Duration{0, time.Minute} {
			err := l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t), loki.WithWait(wait))
			require.ErrorIs(t, err, context.Canceled, name)
			require.ErrorIs(t, err, errFn, name)
			require.NotErrorIs(t, err, loki.ErrBusy, name)
			require.NotErrorIs(t, err, loki.ErrUnavailable, name)
		}
	}
	require.Empty(t, recorder.Sent(t))
	require.Empty(t, secondary.Calls())
}

func TestCase037_WaitingEndsWithTheContext(t *testing.T) {
	t.Parallel()
	t.Run("to the instant", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			a, b := r.locker(), r.locker()
			require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				for _, after := range []time.Duration{100 * time.Millisecond, 777 * time.Millisecond, 5 * time.Second} {
					for _, l := range []*loki.Locker{a, b} { // one waits for its own closure, the other polls
						ctx, cancel := context.WithTimeout(t.Context(), after)
						start := time.Now()
						err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
						cancel()
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.Equal(t, after, time.Since(start))
					}
				}
				return nil
			}))
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
		h := hold(t, a, 30*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var cancelled time.Time
		time.AfterFunc(300*time.Millisecond, func() {
			cancelled = time.Now()
			cancel()
		})
		err := b.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, loki.ErrBusy)
		require.Less(t, time.Since(cancelled), time.Second)
		require.NoError(t, h.end())
		r.requireEmpty()
	})
}

func TestCase039_SecondaryThatHangsIsLeftBehind(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	// calls makes the two calls of the case, both of which hang in the secondary.
	calls := func(t *testing.T, l *loki.Locker) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, loki.ErrBusy)
		require.Less(t, time.Since(start), limit+2*time.Second)

		start = time.Now()
		err = l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.GreaterOrEqual(t, time.Since(start), limit)
		require.Less(t, time.Since(start), limit+2*time.Second)
	}
	t.Run("stub", func(t *testing.T) {
		t.Parallel()
		stub, until := newStubSQL(), make(chan struct{})
		stub.set(stub.hangs(until))
		l := instance(t, refused(t), mssqlhandler.New(stub.open(t)), handlerTimeout(0, limit))
		t.Cleanup(func() { close(until) }) // before the Locker is closed, which waits for what it has left behind
		calls(t, l)
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		proxied, proxy := openSQLThroughProxy(t)
		l := instance(t, refused(t), newSQLKeys(proxied))
		requireRuns(t, l)
		eventually(t, func() bool { return proxied.Stats().Idle > 0 && proxied.Stats().InUse == 0 }, "a connection is idle")
		proxy.BlackHole()
		calls(t, instance(t, refused(t), newSQLKeys(proxied), handlerTimeout(0, limit)))
		proxy.PassThrough()
	})
	t.Run("mirror", func(t *testing.T) {
		t.Parallel()
		const (
			statements = 16             // that acquire, and that a SQL handler has under way at once
			most       = 4 * statements // with those that renew and release, and a second attempt of each
			leases     = 300
		)
		stub, until := newStubSQL(), make(chan struct{})
		stub.set(stub.hangs(until))
		db := stub.open(t)
		db.SetMaxIdleConns(most)
		conns := make([]*sql.Conn, most) // or few sessions begin
		for i := range conns {
			var err error
			conns[i], err = db.Conn(t.Context())
			require.NoError(t, err)
		}
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		l := instance(t, memhandler.New(), mssqlhandler.New(db), handlerTimeout(patience, 20*time.Millisecond))
		for i := range leases {
			_, err := l.Acquire(t.Context(), time.Hour, loki.WithResource(time.Duration(i).String()))
			require.NoError(t, err)
		}
		eventually(t, func() bool { return stub.hanging.Load() >= statements }, "so many calls are left behind")
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			require.LessOrEqual(t, stub.hanging.Load(), int32(most))
		}
		stub.set(stubGranted)
		close(until)
		require.NoError(t, l.Close(t.Context()))
		eventually(t, func() bool { return stub.hanging.Load() == 0 }, "the calls have returned")
	})
}

// openSQLThroughProxy is a pool of the test's own behind a proxy.
func openSQLThroughProxy(t *testing.T) (*sqlxdb.DB, *faultproxy.Proxy) {
	t.Helper()
	requireSQL(t)
	address, err := url.Parse(os.Getenv(dsnVar))
	require.NoError(t, err)
	if address.Port() == "" {
		address.Host = net.JoinHostPort(address.Hostname(), "1433")
	}
	proxy := faultproxy.Start(t, address.Host)
	address.Host = proxy.Addr()
	db, err := sqlxdb.Open("sqlserver", address.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, proxy
}

// A hung secondary does not hold a caller longer than it has to, to the instant.
func TestCase039_LimitsOfAHungSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(func(c *loki.Config) { c.SecondaryTimeout = 2 * time.Second })
		r.primary.fail(errDown)
		until := make(chan struct{})
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{Until: until, IgnoreCtx: true}})
		for _, c := range []struct{ deadline, want time.Duration }{
			{300 * time.Millisecond, 300 * time.Millisecond},
			{time.Hour, 2 * time.Second},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			start := time.Now()
			require.Error(t, l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t)))
			cancel()
			require.Equal(t, c.want, time.Since(start))
		}
		close(until)
		synctest.Wait()
	})
}
