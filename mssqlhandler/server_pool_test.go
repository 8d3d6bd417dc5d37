package mssqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// A setting under which an error ends the batch must not turn "somebody else was first" into an error.
func TestServerXactAbort(t *testing.T) {
	t.Parallel()
	connector, err := mssql.NewConnector(dsn(t))
	require.NoError(t, err)
	connector.SessionInitSQL = "SET XACT_ABORT ON; SET NOCOUNT ON"
	s := newStoreOn(t, sql.OpenDB(connector), "sqlserver")
	s.db.SetMaxOpenConns(2)
	s.EveryOperation(t)
	for round := range 20 {
		require.Len(t, s.Race(t, fmt.Sprint(round), 2), 1)
	}
}

// The old name of the driver, a connector of one's own, a driver that wraps it: the statements are the same.
func TestCase070_EveryDriverName(t *testing.T) {
	register()
	for _, name := range []string{"mssql", "azuresql", "traced-sqlserver"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStoreOn(t, open(t, name), name).EveryOperation(t)
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
