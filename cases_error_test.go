package loki_test

// Cases 063, 064 and 102 to 108: what a database is asked for, what an error says, and what is logged.

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestCase063_LockIsNoPartOfTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for name, same := range map[string]bool{"another pool": false, "the same pool": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openSQL(t) // the application's
			db.SetMaxOpenConns(2)
			keys := newSQLKeys(requireSQL(t))
			long := handlerTimeout(patience, 6*patience) // a second attempt would cost the pool the connection that is being warmed
			b := instance(t, refused(t), keys, long)
			if same {
				keys = keys.on(db)
			}
			a := instance(t, refused(t), keys, long)
			require.NoError(t, a.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
				tx, err := db.BeginTxx(ctx, nil)
				require.NoError(t, err)
				var one int
				require.NoError(t, tx.GetContext(ctx, &one, "SELECT 1"))
				requireSkipped(t, b)
				require.NoError(t, tx.Rollback())
				requireSkipped(t, b)
				return nil
			}))
			require.Empty(t, keys.list(t, "ServiceKey"))
			requireRuns(t, b)
		})
	}
}

func TestCase064_IsolationLevelIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := openSQL(t)
	db.SetMaxOpenConns(1)
	keys := newSQLKeys(db)
	level := func() (level int) {
		require.NoError(t, db.GetContext(t.Context(), &level,
			"SELECT transaction_isolation_level FROM sys.dm_exec_sessions WHERE session_id = @@SPID"))
		return level
	}
	const readCommitted = 2
	require.Equal(t, readCommitted, level(), "the server's default, without which this test shows nothing")
	requireRuns(t, instance(t, refused(t), keys))
	require.Equal(t, readCommitted, level())
	var open int
	require.NoError(t, db.GetContext(t.Context(), &open, "SELECT @@TRANCOUNT"))
	require.Zero(t, open)
}

func TestCase102_WaitThatWasCutShortSaysBothThings(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	r := startRedis(t)
	a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
	h := hold(t, a, 30*time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := b.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t), loki.WithWait(loki.UntilDone))
	require.ErrorIs(t, err, loki.ErrBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `"job"`)

	err = b.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithWait(limit))
	require.ErrorIs(t, err, loki.ErrBusy)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, h.end())
	r.requireEmpty()
}

func TestCase104_BothCausesAreThere(t *testing.T) {
	t.Parallel()
	stub := newStubSQL()
	l := instance(t, refused(t), mssqlhandler.New(stub.open(t)), handlerTimeout(0, 100*time.Millisecond))
	call := func() error {
		err := l.ExecuteWithinLock(t.Context(), 2*time.Second, mustNotRun(t))
		require.NotErrorIs(t, err, loki.ErrBusy)
		var opErr *net.OpError
		require.ErrorAs(t, err, &opErr)
		require.ErrorContains(t, err, "primary")
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, "secondary")
		return err
	}
	stub.set(stubFails(mssql.Error{Number: 229, Message: "The SELECT permission was denied"}))
	err := call()
	var sqlErr mssql.Error
	require.ErrorAs(t, err, &sqlErr)
	require.EqualValues(t, 229, sqlErr.Number)
	require.ErrorContains(t, err, "permission was denied")
	require.NotErrorIs(t, err, loki.ErrUnavailable, "a missing permission is somebody's mistake")

	until := make(chan struct{})
	defer close(until)
	stub.set(stub.hangs(until))
	err = call()
	if !errors.Is(err, context.DeadlineExceeded) { // of the first attempt; the second one may say that its new connection hangs
		require.ErrorContains(t, err, "no connection to the server was ready")
	}
	require.ErrorIs(t, err, loki.ErrUnavailable)
}

// lines counts what is logged, by level.
type lines struct {
	slog.Handler
	mu     sync.Mutex
	levels map[slog.Level]int
	text   strings.Builder
}

func newLines() *lines {
	l := &lines{levels: make(map[slog.Level]int)}
	l.Handler = slog.NewTextHandler(&l.text, &slog.HandlerOptions{Level: slog.LevelDebug})
	return l
}

func (l *lines) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.levels[r.Level]++
	return l.Handler.Handle(ctx, r)
}

func (l *lines) logged(level slog.Level) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.levels[level]
}

func logTo(l *lines) func(*loki.Config) {
	return func(c *loki.Config) { c.Observer = loki.LogEvents(slog.New(l)) }
}

func TestCase106_OutageIsNoFloodOfLines(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		const callers = 10
		log := newLines()
		l := r.locker(logTo(log))
		r.primary.fail(errDown)
		r.secondary.fail(errDown)
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithWait(5*time.Second))
				if err == nil {
					t.Error("it ran")
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute) // what was not known to be free is rolled back, for as long as it could be held
		synctest.Wait()
		total := log.logged(slog.LevelDebug) + log.logged(slog.LevelInfo) + log.logged(slog.LevelWarn) + log.logged(slog.LevelError)
		require.GreaterOrEqual(t, strings.Count(log.text.String(), "loki: unavailable"), callers, "each call is counted")
		require.Equal(t, 2, log.logged(slog.LevelError)+log.logged(slog.LevelWarn), "one for each store")
		require.LessOrEqual(t, total, 5*callers, log.text.String())
	})
}

func TestCase108_BusyIsNoNoise(t *testing.T) {
	t.Parallel()
	const expiry = 900 * time.Millisecond
	r, log, seen := startRedis(t), newLines(), &eventLog{}
	a, b := instance(t, r.handler(), nil, logTo(log)), instance(t, r.handler(), nil, logTo(log))
	counted := instance(t, r.handler(), nil, watched(seen))
	h := hold(t, a, expiry)
	for range 100 {
		requireSkipped(t, b)
		requireSkipped(t, counted)
	}
	time.Sleep(2 * expiry) // of renewals
	require.NoError(t, h.ctx.Err())
	require.NoError(t, h.end())
	require.NoError(t, a.Close(t.Context()))
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, counted.Close(t.Context()))
	require.Zero(t, log.logged(slog.LevelWarn), log.text.String())
	require.Zero(t, log.logged(slog.LevelError), log.text.String())
	require.Zero(t, log.logged(slog.LevelInfo), log.text.String())
	require.Len(t, seen.of(loki.KindBusy), 100, "each skip is visible to whoever wants to see it")
	require.GreaterOrEqual(t, log.logged(slog.LevelDebug), 100)
}
