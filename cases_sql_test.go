package loki_test

// Cases 042, 053, 057, 058 and 068: whose clock ends a lock that nobody renews, and a database that comes back.
//
// What the server's clock says is compared with the server's clock: how long a busy machine takes to be asked is another
// matter.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	_ "time/tzdata" // the zones, also where the system has none

	sqlxdb "github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
)

func init() { workers["hold in SQL"] = workHoldSQL }

// rounding is what a date in the table may be off by: LokiNet's column counts in 1/300 s.
const rounding = 4 * time.Millisecond

// workHoldSQL waits for the lock with a primary that is down, and holds it until a signal ends it. What it says has its zone.
func workHoldSQL(*loki.Locker, *bufio.Scanner) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	expiry, err := time.ParseDuration(os.Getenv("EXPIRY"))
	if err != nil {
		return err
	}
	db, err := sqlxdb.Open("sqlserver", os.Getenv(dsnVar))
	if err != nil {
		return err
	}
	defer db.Close()
	keys := sqlKeys{mssqlhandler.New(db, mssqlhandler.WithTable(os.Getenv("TABLE"))), os.Getenv("PREFIX")}
	primary := redishandler.New(redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), MaxRetries: -1, DialerRetries: 1}))
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: primary, Secondary: keys, PrimaryTimeout: patience, SecondaryTimeout: patience})
	if err != nil {
		return err
	}
	// A server may take seconds for its first answers, which a short lease has no time for.
	warm := loki.Claim{Key: "warm-up of " + strconv.Itoa(os.Getpid()), Token: strconv.Itoa(os.Getpid()), Expiry: time.Minute}
	if _, err := keys.Lock(ctx, warm); err != nil {
		return err
	}
	if _, err := keys.Extend(ctx, warm); err != nil {
		return err
	}
	if err := keys.Release(ctx, warm); err != nil {
		return err
	}
	err = l.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
		_, offset := time.Now().Zone()
		fmt.Println("started in zone", offset)
		<-ctx.Done()
		return ctx.Err()
	}, loki.WithWait(loki.UntilDone))
	fmt.Println("returned", err)
	return l.Close(context.Background())
}

// startHolder starts a process in a zone that holds, or waits for, the lock of s.
func startHolder(t *testing.T, s *caseStore, zone string, expiry time.Duration) *worker {
	t.Helper()
	return startWorker(t, "hold in SQL", "TZ="+zone, "REDIS="+closedPort(t), "TABLE="+sqlTable.name, "PREFIX="+s.sql.prefix, "EXPIRY="+expiry.String())
}

// requireStartedIn waits for the worker to hold the lock, and demands that it is in that zone.
func (w *worker) requireStartedIn(zone string) {
	w.t.Helper()
	location, err := time.LoadLocation(zone)
	require.NoError(w.t, err)
	_, offset := time.Now().In(location).Zone()
	w.requireSays("started in zone " + strconv.Itoa(offset))
}

// Two processes in different zones: the one takes over from the other when the row has expired, to the millisecond, and
// not by hours later or at once.
func TestCase053_ZonesOfTheProcessesDoNotMatter(t *testing.T) {
	t.Parallel()
	for _, zones := range [][2]string{{"Europe/Berlin", "UTC"}, {"UTC", "Europe/Berlin"}, {"Asia/Kolkata", "America/St_Johns"}} {
		t.Run(zones[0]+" then "+zones[1], func(t *testing.T) {
			t.Parallel()
			s := sqlStore(t)
			const expiry = 2 * time.Second
			a := startHolder(t, s, zones[0], expiry)
			a.requireStartedIn(zones[0])
			b := startHolder(t, s, zones[1], expiry)
			b.requireNotSaid(time.Second)
			require.NoError(t, a.signal(syscall.SIGKILL))
			_ = a.wait()
			killed := s.now()
			row, held := s.row("job")
			require.True(t, held, "the machine is too slow for this test")
			b.requireStartedIn(zones[1])
			next, held := s.row("job")
			require.True(t, held)
			require.NotEqual(t, row.ID, next.ID)

			require.LessOrEqual(t, row.Until.Sub(killed), expiry, "killed, the process leaves no more than its expiry")
			require.False(t, next.Since.Add(rounding).Before(row.Until), "not before: %v", row.Until.Sub(next.Since))
			require.Less(t, next.Since.Sub(row.Until), patience, "and not an hour after, or half of one")
			require.NoError(t, b.signal(syscall.SIGTERM))
			require.NoError(t, b.wait())
			s.requireEmpty()
		})
	}
}

// requireNotSaid demands that the worker says nothing for so long.
func (w *worker) requireNotSaid(d time.Duration) {
	w.t.Helper()
	select {
	case line := <-w.says:
		require.FailNow(w.t, "the worker says: "+line)
	case <-time.After(d):
	}
}

// Half a second is neither nothing nor a whole one, when nobody renews.
func TestCase042_SubSecondExpiryInTheSecondary(t *testing.T) {
	t.Parallel()
	const expiry = 500 * time.Millisecond
	s := sqlStore(t)
	b := instance(t, refused(t), s)
	requireRuns(t, b) // connections are there
	a := hold(t, instance(t, refused(t), s), expiry, loki.WithoutRenewal())
	row, held := s.row("job")
	require.True(t, held, "the machine is too slow for this test")
	lasts := row.Until.Sub(row.Since) // less, if the statement took time before it inserted the row, and never more
	require.Greater(t, lasts, expiry/2)
	require.LessOrEqual(t, lasts, expiry+rounding)
	var next loki.Holder
	eventually(t, func() bool {
		err := b.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			next, _ = s.row("job")
			return nil
		})
		if err != nil {
			require.ErrorIs(t, err, loki.ErrBusy)
		}
		return err == nil
	}, "B runs")
	require.False(t, next.Since.Add(rounding).Before(row.Until), "not before: %v", row.Until.Sub(next.Since))
	require.Less(t, next.Since.Sub(row.Until), patience)
	require.ErrorIs(t, a.end(), loki.ErrLockLost)
	s.requireEmpty()
}

// The store's clock jumps, and what was held is over there at once. The holder is told at its next renewal, and what it
// still does does not reach whoever took the lock.
func TestCase058_ServersClockJumps(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, s *caseStore, expiry time.Duration, jump func()) {
		a := hold(t, instance(t, s, nil), expiry)
		b := instance(t, s, nil)
		requireSkipped(t, b)
		jump()
		jumped := time.Now()
		next := begin(t.Context(), t, b, expiry, loki.WithWait(patience))
		next.requireStarted()
		token := s.token("job")
		require.ErrorIs(t, a.requireLost(loki.ErrNotHeld), loki.ErrLockLost)
		require.Less(t, time.Since(jumped), expiry, "at the next renewal, and not when its validity ends")
		require.ErrorIs(t, a.end(), loki.ErrLockLost)
		require.Equal(t, token, s.token("job"), "its release does not touch the claim of another")
		requireSkipped(t, instance(t, s, nil))
		require.NoError(t, next.end())
	}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		test(t, redisStore(r), 6*time.Second, func() {
			require.NoError(t, r.direct.PExpire(t.Context(), lockKey, 0).Err())
		})
		r.requireEmpty()
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		s := sqlStore(t)
		test(t, s, 9*time.Second, func() {
			_, err := sqlTable.db.ExecContext(t.Context(), "UPDATE [dbo].["+sqlTable.name+"] SET [ExpiresAt] = DATEADD(hour, -1, [ExpiresAt]) WHERE [ServiceKey] = @p1", s.sql.prefix+"job")
			require.NoError(t, err)
		})
		s.requireEmpty()
	})
}

// A database that was down for a while is used again by itself, and nothing of the outage is left.
func TestCase068_RecoveryAfterAnOutage(t *testing.T) {
	t.Parallel()
	const down, pause = time.Second, 50 * time.Millisecond
	test := func(t *testing.T, db *sqlxdb.DB, secondary loki.LockHandler, cut, mend func(), limit time.Duration) {
		l := instance(t, refused(t), secondary, handlerTimeout(patience, limit))
		requireRuns(t, l)
		cut()
		var callers sync.WaitGroup
		var failed atomic.Int64
		for end := time.Now().Add(down); time.Now().Before(end); time.Sleep(pause) {
			callers.Go(func() {
				start := time.Now()
				err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithResource(strconv.FormatInt(failed.Add(1), 10)))
				if err == nil || !loki.IsUnavailable(err) || time.Since(start) > time.Second {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
		}
		callers.Wait()
		require.Greater(t, failed.Load(), int64(down/pause/4))
		mend()
		start := time.Now()
		for err := errors.New("not asked"); err != nil; {
			err = l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil })
			require.Less(t, time.Since(start), limit, "a call runs again: %v", err)
		}
		for range 10 {
			requireRuns(t, l)
		}
		require.NoError(t, l.Close(t.Context()))
		// go-mssqldb waits twice 5 s for a server to confirm that a call has been cancelled.
		require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 3*patience, 10*time.Millisecond, "every connection has been given back")
	}
	t.Run("stub", func(t *testing.T) {
		t.Parallel()
		stub := newStubSQL()
		db := stub.open(t)
		test(t, db, mssqlhandler.New(db), func() { stub.set(stubFails(os.ErrDeadlineExceeded)) }, func() { stub.set(stubGranted) }, time.Second)
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		requireSQL(t)
		dsn, err := url.Parse(os.Getenv(dsnVar))
		require.NoError(t, err)
		proxy := faultproxy.Start(t, dsn.Host)
		dsn.Host = proxy.Addr()
		db, err := sqlxdb.Open("sqlserver", dsn.String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		db.SetMaxOpenConns(4) // what was not answered is all asked again when the server is back
		db.SetMaxIdleConns(4)
		keys := newSQLKeys(requireSQL(t))
		test(t, db, keys.on(db), proxy.Refuse, proxy.PassThrough, 6*patience) // such a server may take seconds for what is new to a connection
		require.Empty(t, keys.list(t, "ServiceKey"))
	})
}

// A server, or what stands in front of it, takes connections and says nothing. Each call is over in its own time all the
// same, whatever the driver waits for, and none of them leaves anything behind when the silence ends.
func TestSQLServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	h, err := mssqlhandler.Open("sqlserver://user:secret@" + silent.Addr().String() + "?database=none&encrypt=disable")
	require.NoError(t, err)
	l := instance(t, refused(t), h, handlerTimeout(patience, limit))
	for i := range 3 {
		start := time.Now()
		// A key each, else the second call may have to wait for the rollback of the first.
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithResource(strconv.Itoa(i)))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.Regexp(t, "no connection to the server was ready within|i/o timeout", err.Error(), "the handler, or the driver, says it")
		require.GreaterOrEqual(t, time.Since(start), limit*9/10)
		require.Less(t, time.Since(start), limit+3*time.Second)
	}
	require.NoError(t, h.Close())
}
