package mssqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki/mssqlhandler"
)

// stub plays the server behind a *sql.DB. answer is asked for every statement, with the number of those before it.
type stub struct {
	answer func(call int) ([]resultSet, error)

	mu       sync.Mutex
	calls    []call
	dials    int
	dialErr  error
	restarts int // a connection made before the last restart is dead
	dead     error
}

// call is a statement as the driver got it.
type call struct {
	statement string
	args      []any
}

// resultSet is what a statement answers. err comes after the rows.
type resultSet struct {
	columns []string
	rows    [][]driver.Value
	err     error
}

// granted and busy are answers to the grant statement, told where the server tells them.
func granted(fence int64) []resultSet {
	return []resultSet{answerOf(1, fence, nil, nil, nil, nil)}
}

func busy(holder string) []resultSet {
	return []resultSet{answerOf(), answerOf(0, 7, holder, int64(1_700_000_000_000_000), int64(1_700_000_009_000_000), int64(5_000_000))}
}

func answerOf(values ...driver.Value) resultSet {
	set := resultSet{columns: []string{"Held", "Fence", "Holder", "Since", "Until", "Left"}}
	for i, v := range values {
		if n, ok := v.(int); ok {
			values[i] = int64(n)
		}
	}
	if values != nil {
		set.rows = [][]driver.Value{values}
	}
	return set
}

// held is the answer to the extend statement.
func held(n int64) []resultSet {
	return []resultSet{{columns: []string{"Held"}, rows: [][]driver.Value{{n}}}}
}

// answers are what the server says to each operation when all is well.
var answers = map[string][]resultSet{
	"lock":    granted(4),
	"grant":   granted(4),
	"extend":  held(1),
	"release": {{columns: []string{"Next", "Held"}, rows: [][]driver.Value{{"next", int64(1)}}}},
	"inspect": {{columns: []string{"Holder", "Since", "Until", "Left"}}},
}

// always answers every statement alike.
func always(sets []resultSet, err error) func(int) ([]resultSet, error) {
	return func(int) ([]resultSet, error) { return sets, err }
}

// first fails the first n statements with err and answers the rest.
func first(n int, err error, sets []resultSet) func(int) ([]resultSet, error) {
	return func(call int) ([]resultSet, error) {
		if call < n {
			return nil, err
		}
		return sets, nil
	}
}

// newStub returns a handler on a stub, the pool as database/sql has it by default.
func newStub(t *testing.T, answer func(int) ([]resultSet, error), opts ...mssqlhandler.Option) (*mssqlhandler.Handler, *stub, *sqlx.DB) {
	t.Helper()
	s := &stub{answer: answer, dead: io.EOF}
	db := sqlx.NewDb(sql.OpenDB(s), "sqlserver")
	t.Cleanup(func() { _ = db.Close() })
	return mssqlhandler.New(db, opts...), s, db
}

func (s *stub) sent() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

// restart makes every connection there is fail with dead when it is used, as after a restart of the server.
func (s *stub) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts++
}

func (s *stub) Connect(context.Context) (driver.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.dialErr != nil {
		return nil, s.dialErr
	}
	return &stubConn{stub: s, made: s.restarts}, nil
}

func (s *stub) Driver() driver.Driver { return nil }

type stubConn struct {
	*stub
	made int
}

func (c *stubConn) run(statement string, args []driver.NamedValue) ([]resultSet, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != c.restarts {
		return nil, c.dead
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	c.calls = append(c.calls, call{statement, values})
	return c.answer(len(c.calls) - 1)
}

func (c *stubConn) QueryContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	sets, err := c.run(statement, args)
	if err != nil {
		return nil, err
	}
	return &stubRows{sets: sets}, nil
}

func (c *stubConn) ExecContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	if _, err := c.run(statement, args); err != nil {
		return nil, err
	}
	return driver.ResultNoRows, nil
}

// IsValid is how go-mssqldb tells database/sql that a connection is no good any more.
func (c *stubConn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made == c.restarts
}

// CheckNamedValue lets every argument through as it is, to be looked at.
func (c *stubConn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *stubConn) Prepare(string) (driver.Stmt, error) {
	panic("every statement goes without preparing")
}
func (c *stubConn) Begin() (driver.Tx, error) { panic("no operation needs a transaction") }
func (c *stubConn) Close() error              { return nil }

type stubRows struct {
	sets []resultSet
	row  int
}

func (r *stubRows) Columns() []string { return r.sets[0].columns }
func (r *stubRows) Close() error      { return nil }

func (r *stubRows) Next(dest []driver.Value) error {
	set := r.sets[0]
	if r.row == len(set.rows) {
		if set.err != nil {
			return set.err
		}
		return io.EOF
	}
	copy(dest, set.rows[r.row])
	r.row++
	return nil
}

func (r *stubRows) HasNextResultSet() bool { return len(r.sets) > 1 }

func (r *stubRows) NextResultSet() error {
	if len(r.sets) == 1 {
		return io.EOF
	}
	r.sets, r.row = r.sets[1:], 0
	return nil
}
