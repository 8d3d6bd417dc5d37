package migrations_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
)

// stub is a server whose table is as table says, and whose exec decides what a migration does to it.
type stub struct {
	table   [][]driver.Value // what the catalog tells of it
	history [][]driver.Value // and of the table with the claims that have ended
	exec    func(statement string) error
	looked  int
	ran     []string
	closed  int // connections that were thrown away
}

// fit is the table as it has to be, a row for each column, fitHistory that of the claims that have ended; missing is no
// table.
var (
	fit = [][]driver.Value{
		{"ServiceKey", "nvarchar", int64(800), "Latin1_General_BIN2", int64(1), int64(1)},
		{"CreationDate", "datetime", int64(8), "", int64(0), int64(0)},
		{"Token", "nvarchar", int64(256), "Latin1_General_BIN2", int64(0), int64(0)},
		{"Holder", "nvarchar", int64(-1), "Latin1_General_CI_AS", int64(0), int64(0)},
		{"ExpiresAt", "datetime2", int64(8), "", int64(0), int64(0)},
		{"Fence", "bigint", int64(8), "", int64(0), int64(0)},
	}
	kept = [][]driver.Value{ // what a history adds
		{"RunEndedAt", "datetime2", int64(8), "", int64(0), int64(0)},
		{"RunEnding", "varchar", int64(10), "Latin1_General_CI_AS", int64(0), int64(0)},
	}
	fitHistory = [][]driver.Value{
		{"ServiceKey", "nvarchar", int64(800), "Latin1_General_BIN2", int64(0), int64(1)},
		{"Token", "nvarchar", int64(256), "Latin1_General_BIN2", int64(0), int64(0)},
		{"Holder", "nvarchar", int64(-1), "Latin1_General_CI_AS", int64(0), int64(0)},
		{"CreationDate", "datetime", int64(8), "", int64(0), int64(0)},
		{"ExpiresAt", "datetime2", int64(8), "", int64(0), int64(0)},
		{"Fence", "bigint", int64(8), "", int64(0), int64(0)},
		{"EndedAt", "datetime2", int64(8), "", int64(0), int64(1)},
		{"Ending", "varchar", int64(10), "Latin1_General_CI_AS", int64(0), int64(0)},
		{"RunEndedAt", "datetime2", int64(8), "", int64(0), int64(0)},
		{"RunEnding", "varchar", int64(10), "Latin1_General_CI_AS", int64(0), int64(0)},
		{"Until", "datetime2", int64(8), "", int64(0), int64(0)},
		{"Outcome", "varchar", int64(10), "Latin1_General_CI_AS", int64(0), int64(0)},
	}
	missing [][]driver.Value
)

func open(t *testing.T, s *stub) *sql.DB {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func number(n int32) error {
	return mssql.Error{Number: n, Class: 14, Message: "as the server says it"}
}

func (s *stub) Connect(context.Context) (driver.Conn, error) { return stubConn{s}, nil }
func (s *stub) Driver() driver.Driver                        { return nil }

type stubConn struct{ *stub }

func (c stubConn) QueryContext(_ context.Context, statement string, _ []driver.NamedValue) (driver.Rows, error) {
	if !strings.Contains(statement, "sys.columns") {
		panic("the only thing to ask is what the table looks like")
	}
	c.looked++
	if strings.Contains(statement, "History") {
		return &stubRows{rows: c.history}, nil
	}
	return &stubRows{rows: c.table}, nil
}

func (c stubConn) ExecContext(_ context.Context, statement string, _ []driver.NamedValue) (driver.Result, error) {
	c.ran = append(c.ran, statement)
	if c.exec == nil {
		return driver.ResultNoRows, nil
	}
	return driver.ResultNoRows, c.exec(statement)
}

func (c stubConn) Prepare(string) (driver.Stmt, error) {
	panic("every statement goes without preparing")
}
func (c stubConn) Begin() (driver.Tx, error) { panic("the transactions are in the files") }
func (c stubConn) Close() error              { c.closed++; return nil }

type stubRows struct{ rows [][]driver.Value }

func (r *stubRows) Columns() []string {
	return []string{"name", "type_name", "max_length", "collation_name", "is_key", "leads"}
}
func (r *stubRows) Close() error { return nil }

func (r *stubRows) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}
