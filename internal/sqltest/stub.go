package sqltest

import (
	"context"
	"database/sql/driver"
	"io"
	"slices"
	"sync"
)

// Stub is a database that answers from a script: what a server cannot be made to say on demand. It is a [driver.Connector].
type Stub struct {
	// Answer is called for every statement, one at a time, with the number of those before it.
	Answer func(number int, c Call) ([]ResultSet, error)

	DialErr error // of each new connection
	Dead    error // of each connection that [Stub.Restart] has cut; io.EOF if nil

	mu       sync.Mutex // guards what follows
	calls    []Call
	dials    int
	restarts int // a connection made before the last restart is dead
}

// Call is a statement as the driver got it.
type Call struct {
	Statement string
	Args      []any
}

// ResultSet is what a statement answers. Err comes after the rows.
type ResultSet struct {
	Columns []string
	Rows    [][]driver.Value
	Err     error
}

// Row is the answer of one row.
func Row(values ...driver.Value) []ResultSet {
	return []ResultSet{{Columns: make([]string, len(values)), Rows: [][]driver.Value{values}}}
}

// Always answers every statement alike.
func Always(sets []ResultSet, err error) func(int, Call) ([]ResultSet, error) {
	return func(int, Call) ([]ResultSet, error) { return sets, err }
}

// First fails the first n statements with err and answers the rest.
func First(n int, err error, sets []ResultSet) func(int, Call) ([]ResultSet, error) {
	return func(number int, _ Call) ([]ResultSet, error) {
		if number < n {
			return nil, err
		}
		return sets, nil
	}
}

// Sent returns the statements so far.
func (s *Stub) Sent() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Dials returns how many connections were asked for.
func (s *Stub) Dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

// Restart makes every connection there is fail with Dead when it is used, as after a restart of a server.
func (s *Stub) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts++
}

// Connect implements [driver.Connector].
func (s *Stub) Connect(context.Context) (driver.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.DialErr != nil {
		return nil, s.DialErr
	}
	return &stubConn{stub: s, made: s.restarts}, nil
}

// Driver implements [driver.Connector].
func (*Stub) Driver() driver.Driver { return nil }

type stubConn struct {
	stub *Stub
	made int
}

func (c *stubConn) run(statement string, args []driver.NamedValue) ([]ResultSet, error) {
	s := c.stub
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.made != s.restarts {
		if s.Dead == nil {
			return nil, io.EOF
		}
		return nil, s.Dead
	}
	call := Call{Statement: statement, Args: make([]any, len(args))}
	for i, a := range args {
		call.Args[i] = a.Value
	}
	s.calls = append(s.calls, call)
	return s.Answer(len(s.calls)-1, call)
}

func (c *stubConn) QueryContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	sets, err := c.run(statement, args)
	if err != nil {
		return nil, err
	}
	if len(sets) == 0 {
		sets = []ResultSet{{}}
	}
	return &stubRows{sets: sets}, nil
}

func (c *stubConn) ExecContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	if _, err := c.run(statement, args); err != nil {
		return nil, err
	}
	return driver.ResultNoRows, nil
}

// IsValid is how a driver reports to database/sql that a connection is dead.
func (c *stubConn) IsValid() bool {
	c.stub.mu.Lock()
	defer c.stub.mu.Unlock()
	return c.made == c.stub.restarts
}

// CheckNamedValue lets every argument through as it is, to be looked at.
func (*stubConn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (*stubConn) Prepare(string) (driver.Stmt, error) {
	panic("every statement goes without preparing")
}
func (*stubConn) Begin() (driver.Tx, error) { panic("no operation needs a transaction") }
func (*stubConn) Close() error              { return nil }

type stubRows struct {
	sets []ResultSet
	row  int
}

func (r *stubRows) Columns() []string { return r.sets[0].Columns }
func (r *stubRows) Close() error      { return nil }

func (r *stubRows) Next(dest []driver.Value) error {
	set := r.sets[0]
	if r.row == len(set.Rows) {
		if set.Err != nil {
			return set.Err
		}
		return io.EOF
	}
	copy(dest, set.Rows[r.row])
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
