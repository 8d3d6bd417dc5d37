package mssqlhandler_test

// This file is about the pool that the handler shares with the application, and about connections that die.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// everyOperation uses each statement once.
func (s *store) everyOperation(t *testing.T) {
	t.Helper()
	c := s.claim("every operation")
	fence := s.mustGrant(t, c)
	require.Equal(t, fence, s.mustGrant(t, c))
	s.mustBeBusy(t, s.claim("every operation"))
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	_, held, err = s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, s.Release(t.Context(), c))
	require.Zero(t, s.rows(t))
}

func TestCase064_PoolOfOneAndItsIsolationLevel(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	s.db.SetMaxOpenConns(1)
	session := func() (level, transactions int) {
		require.NoError(t, s.db.QueryRowContext(t.Context(),
			"SELECT transaction_isolation_level, @@TRANCOUNT FROM sys.dm_exec_sessions WHERE session_id = @@SPID").Scan(&level, &transactions))
		return level, transactions
	}
	before, _ := session()
	s.everyOperation(t)
	after, transactions := session()
	require.Equal(t, before, after)
	require.Zero(t, transactions)
	require.Zero(t, s.db.Stats().InUse)
}

// The claim is not part of the caller's transaction, is visible to others at once and stays when that is rolled back.
func TestCase063_ForeignTransaction(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	s.db.SetMaxOpenConns(2)
	tx, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	mine := s.claim("the application's own")
	_, err = tx.ExecContext(t.Context(), s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETDATE())"), mine.Key)
	require.NoError(t, err)

	c := s.claim("k")
	s.mustGrant(t, c)
	s.mustBeBusy(t, s.claim("k"))
	require.NoError(t, tx.Rollback())
	s.mustBeBusy(t, s.claim("k"))
	require.NoError(t, s.Release(t.Context(), c))
	require.Zero(t, s.rows(t))
}

// A setting under which an error ends the batch must not turn "somebody else was first" into an error.
func TestServerXactAbort(t *testing.T) {
	t.Parallel()
	connector, err := mssql.NewConnector(dsn(t))
	require.NoError(t, err)
	connector.SessionInitSQL = "SET XACT_ABORT ON; SET NOCOUNT ON"
	s := newStoreOn(t, sql.OpenDB(connector), "sqlserver")
	s.db.SetMaxOpenConns(2)
	s.everyOperation(t)
	for round := range 20 {
		require.Len(t, s.race(t, fmt.Sprint(round), 2), 1)
	}
}

// killAll leaves n idle connections in the store's pool whose sessions the server has ended.
func (s *store) killAll(t *testing.T, n int) {
	t.Helper()
	var conns []*sql.Conn
	for len(conns) < n {
		conn, err := s.db.Conn(t.Context())
		require.NoError(t, err)
		var spid int
		if conn.QueryRowContext(t.Context(), "SELECT @@SPID").Scan(&spid) != nil {
			require.NoError(t, conn.Close()) // one that died last time
			continue
		}
		conns = append(conns, conn)
		_, err = shared.db.ExecContext(t.Context(), fmt.Sprintf("KILL %d", spid))
		require.NoError(t, err)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Equal(t, n, s.db.Stats().Idle)
}

// A claim does not live in a connection: killed sessions cost it nothing, and the next call finds a new one.
func TestCase067_LockIsNotBoundToAConnection(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	s.db.SetMaxIdleConns(2)
	c := s.claim("k")
	s.mustGrant(t, c)
	s.killAll(t, 2)
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	s.mustBeBusy(t, s.claim("k"))
	s.killAll(t, 2)
	require.NoError(t, s.Release(t.Context(), c))
	require.Zero(t, s.rows(t))
}

// A call whose caller leaves while it waits for a row leaves nothing behind, not even a waiting session. A server that does
// not notice in time records the claim when the row is free: then it is taken back, as a Locker does.
func TestServerContextEndsWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	s.db.SetMaxOpenConns(2)
	s.warm(t) // so that it is the row that the call waits for
	tx, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	c := s.claim("k")
	_, err = tx.ExecContext(t.Context(), s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETDATE())"), c.Key)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.Lock(ctx, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, tx.Rollback())
	require.Eventually(t, func() bool {
		return s.Release(t.Context(), c) == nil && s.rows(t) == 0 && s.Release(t.Context(), c) == nil && s.rows(t) == 0
	}, 15*time.Second, 100*time.Millisecond)
	// The driver goes on for a while after the caller has left: it waits for the server to confirm that it has stopped.
	require.Eventually(t, func() bool { return s.db.Stats().InUse == 0 }, 15*time.Second, 10*time.Millisecond)
	s.everyOperation(t)
}

// The old name of the driver, a connector of one's own, a driver that wraps it: the statements are the same.
func TestCase070_EveryDriverName(t *testing.T) {
	register()
	for _, name := range []string{"mssql", "azuresql", "traced-sqlserver"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStoreOn(t, open(t, name), name).everyOperation(t)
		})
	}
}

// register may be called again, by a test that is run several times.
var register = sync.OnceFunc(func() {
	sql.Register("azuresql", &mssql.Driver{})
	sql.Register("traced-sqlserver", tracing{&mssql.Driver{}})
})

// tracing wraps a driver as instrumentation does, and hides all of it but the interfaces of database/sql.
type tracing struct{ driver.Driver }

func (d tracing) Open(name string) (driver.Conn, error) {
	conn, err := d.Driver.Open(name)
	return tracedConn{conn}, err
}

type tracedConn struct{ driver.Conn }

func (c tracedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	p, ok := c.Conn.(driver.ConnPrepareContext)
	if !ok {
		return nil, errors.New("the driver cannot prepare with a context")
	}
	stmt, err := p.PrepareContext(ctx, query)
	return tracedStmt{stmt}, err
}

type tracedStmt struct{ driver.Stmt }

func (s tracedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (s tracedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

func TestServerMissingTable(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	h := mssqlhandler.New(s.db, mssqlhandler.WithTable("loki_test_no_such_table"))
	for op, send := range operations {
		err := send(t.Context(), h)
		require.Error(t, err, op)
		require.False(t, loki.IsUnavailable(err), "%s: a missing table is a mistake: %v", op, err)
	}
}

// A transaction of the application has the only connection of the pool: the error names the pool, and what to do.
func TestServerFullPoolIsNamed(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
	s.db.SetMaxOpenConns(1)
	c := s.claim("k")
	s.mustGrant(t, c)
	tx, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	for op, send := range map[string]func(context.Context) error{
		"lock":    func(ctx context.Context) error { _, err := s.Lock(ctx, c); return err },
		"extend":  func(ctx context.Context) error { _, err := s.Extend(ctx, c); return err },
		"release": func(ctx context.Context) error { return s.Release(ctx, c) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := send(ctx)
		cancel()
		require.ErrorContains(t, err, "raise SetMaxOpenConns", op)
		require.True(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
	require.NoError(t, tx.Rollback())
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, s.Release(t.Context(), c))
	require.Zero(t, s.rows(t))
}
