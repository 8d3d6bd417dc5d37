package loki_test

// This file is a driver of database/sql that plays a T-SQL server: it says what a real one cannot be made to say.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	sqlxdb "github.com/jmoiron/sqlx"
)

// stubSQL answers every statement as it is told.
type stubSQL struct {
	mu      sync.Mutex // guards what follows; not held while an answer is waited for
	answer  func(ctx context.Context) ([]driver.Value, error)
	hanging atomic.Int32
}

func newStubSQL() *stubSQL { return &stubSQL{answer: stubGranted} }

// stubGranted and stubBusy are the row of the grant statement; the extend statement reads its first column alone, and
// the release none.
func stubGranted(context.Context) ([]driver.Value, error) {
	return []driver.Value{int64(1), int64(1), nil, nil, nil, nil}, nil
}

func stubBusy(context.Context) ([]driver.Value, error) {
	return []driver.Value{int64(0), int64(0), "somebody else", nil, nil, nil}, nil
}

func stubFails(err error) func(context.Context) ([]driver.Value, error) {
	return func(context.Context) ([]driver.Value, error) { return nil, err }
}

// hangs is an answer that does not come until the channel is closed, whatever becomes of the context.
func (s *stubSQL) hangs(until <-chan struct{}) func(context.Context) ([]driver.Value, error) {
	return func(context.Context) ([]driver.Value, error) {
		s.hanging.Add(1)
		defer s.hanging.Add(-1)
		<-until
		return nil, io.ErrUnexpectedEOF
	}
}

func (s *stubSQL) set(answer func(context.Context) ([]driver.Value, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *stubSQL) ask(ctx context.Context) ([]driver.Value, error) {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	return answer(ctx)
}

// open is a pool that is closed with the test.
func (s *stubSQL) open(t *testing.T) *sqlxdb.DB {
	db := sqlxdb.NewDb(sql.OpenDB(stubConnector{s}), "sqlserver")
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type stubConnector struct{ *stubSQL }

func (c stubConnector) Connect(context.Context) (driver.Conn, error) { return stubConn(c), nil }
func (c stubConnector) Driver() driver.Driver                        { return nil }

type stubConn struct{ *stubSQL }

func (c stubConn) QueryContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Rows, error) {
	row, err := c.ask(ctx)
	if err != nil {
		return nil, err
	}
	return &stubRow{row: row}, nil
}

func (c stubConn) ExecContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Result, error) {
	_, err := c.ask(ctx)
	return driver.ResultNoRows, err
}

func (stubConn) CheckNamedValue(*driver.NamedValue) error { return nil }
func (stubConn) Prepare(string) (driver.Stmt, error)      { panic("nothing is prepared") }
func (stubConn) Begin() (driver.Tx, error)                { panic("nothing needs a transaction") }
func (stubConn) Close() error                             { return nil }

// stubRow is a result of one row.
type stubRow struct {
	row  []driver.Value
	read bool
}

func (r *stubRow) Columns() []string { return make([]string, len(r.row)) }
func (r *stubRow) Close() error      { return nil }

func (r *stubRow) Next(dest []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read = true
	copy(dest, r.row)
	return nil
}
