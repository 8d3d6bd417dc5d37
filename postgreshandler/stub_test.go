package postgreshandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"sync"
	"testing"

	"github.com/lokilock/loki/postgreshandler"
)

// stub plays the server behind a *sql.DB. answer is asked for every statement, with the number of those before it.
type stub struct {
	answer func(call int) ([]driver.Value, error)

	mu    sync.Mutex
	calls []call
}

// call is a statement as the driver got it.
type call struct {
	statement string
	args      []any
}

// always answers every statement alike, with a row or an error.
func always(row []driver.Value, err error) func(int) ([]driver.Value, error) {
	return func(int) ([]driver.Value, error) { return row, err }
}

// first fails the first n statements with err and answers the rest with a row.
func first(n int, err error, row []driver.Value) func(int) ([]driver.Value, error) {
	return func(call int) ([]driver.Value, error) {
		if call < n {
			return nil, err
		}
		return row, nil
	}
}

// granted is an answer to the grant statement.
func granted(fence int64) []driver.Value {
	return []driver.Value{true, fence, "h", int64(1), int64(2), int64(1)}
}

// newStub returns a handler on a stub.
func newStub(t *testing.T, answer func(int) ([]driver.Value, error), opts ...postgreshandler.Option) (*postgreshandler.Handler, *stub) {
	t.Helper()
	s := &stub{answer: answer}
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return postgreshandler.New(db, opts...), s
}

func (s *stub) sent() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

func (s *stub) Connect(context.Context) (driver.Conn, error) { return stubConn{s}, nil }
func (s *stub) Driver() driver.Driver                        { return nil }

type stubConn struct{ *stub }

func (c stubConn) QueryContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	c.calls = append(c.calls, call{statement, values})
	row, err := c.answer(len(c.calls) - 1)
	if err != nil {
		return nil, err
	}
	return &stubRows{row: row, left: len(row) > 0}, nil
}

func (c stubConn) Prepare(string) (driver.Stmt, error) {
	panic("every statement goes without preparing")
}
func (c stubConn) Begin() (driver.Tx, error) { panic("no operation needs a transaction") }
func (c stubConn) Close() error              { return nil }

type stubRows struct {
	row  []driver.Value
	left bool
}

func (r *stubRows) Columns() []string { return make([]string, len(r.row)) }
func (r *stubRows) Close() error      { return nil }

func (r *stubRows) Next(dest []driver.Value) error {
	if !r.left {
		return io.EOF
	}
	r.left = false
	copy(dest, r.row)
	return nil
}

// silent is a server that takes connections and says nothing.
type silent struct{}

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Driver() driver.Driver { return nil }
