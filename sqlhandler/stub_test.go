package sqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// The errors that the stub's dialect knows.
var (
	errLost     = errors.New("lost to another session")
	errBroken   = errors.New("the stream is broken")
	errDown     = errors.New("the database is recovering")
	errNoRights = errors.New("permission denied")
	errUnopened = errors.New("cannot open the database")
)

func judge(err error) (sqlhandler.Verdict, string) {
	switch {
	case errors.Is(err, errLost):
		return sqlhandler.VerdictRetry, ""
	case errors.Is(err, errBroken):
		return sqlhandler.VerdictBroken, ""
	case errors.Is(err, errDown):
		return sqlhandler.VerdictUnavailable, "wait"
	case errors.Is(err, errNoRights):
		return sqlhandler.VerdictPermanent, "run GRANT"
	case errors.Is(err, errUnopened):
		return sqlhandler.VerdictUnopened, "see its name"
	}
	return sqlhandler.VerdictUnknown, ""
}

// dialect is of statements that are their own names.
func dialect() sqlhandler.Dialect {
	statement := func(text string) sqlhandler.Statement {
		return sqlhandler.Statement{Text: text, Args: func(c sqlhandler.Call) []any {
			return []any{c.Key, c.Token, c.Supersedes, c.SweepFrom, int64(c.Limit)}
		}}
	}
	return sqlhandler.Dialect{
		Name: "stubhandler", Table: `"locks"`, MaxKey: 10, MaxToken: 8, Judge: judge,
		Grant: statement("grant"), Extend: statement("extend"), Release: statement("release"),
		Inspect: statement("inspect"), History: statement("history"),
		Refuse: func(what, text string) string {
			if strings.HasSuffix(text, " ") {
				return "ends in a blank"
			}
			return ""
		},
	}
}

// call is a statement as the driver got it.
type call struct {
	statement string
	args      []any
}

// stub plays the server. answer is asked for every statement, with the number of those before it.
type stub struct {
	answer  func(call int) ([][]driver.Value, error)
	connect func() (driver.Conn, error) // if not nil
	dial    func(context.Context) error // if not nil, before that
	db      *sql.DB

	mu    sync.Mutex
	calls []call
}

// first fails the first n statements with err and answers the rest.
func first(n int, err error, rows ...[]driver.Value) func(int) ([][]driver.Value, error) {
	return func(call int) ([][]driver.Value, error) {
		if call < n {
			return nil, err
		}
		return rows, nil
	}
}

func newStub(t *testing.T, answer func(int) ([][]driver.Value, error), change ...func(*sqlhandler.Dialect)) (*sqlhandler.Base, *stub) {
	t.Helper()
	s := &stub{answer: answer}
	db := sql.OpenDB(s)
	s.db = db
	t.Cleanup(func() { _ = db.Close() })
	d := dialect()
	for _, f := range change {
		f(&d)
	}
	return sqlhandler.NewBase(db, d), s
}

func (s *stub) sent() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *stub) Connect(ctx context.Context) (driver.Conn, error) {
	if s.dial != nil {
		if err := s.dial(ctx); err != nil {
			return nil, err
		}
	}
	if s.connect != nil {
		return s.connect()
	}
	return stubConn{s}, nil
}

func (s *stub) Driver() driver.Driver { return nil }

type stubConn struct{ *stub }

func (c stubConn) QueryContext(_ context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	c.calls = append(c.calls, call{statement, values})
	rows, err := c.answer(len(c.calls) - 1)
	if err != nil {
		return nil, err
	}
	r := &stubRows{rows: rows}
	if len(rows) > 0 {
		r.columns = make([]string, len(rows[0]))
	}
	return r, nil
}

func (stubConn) Prepare(string) (driver.Stmt, error) {
	panic("every statement goes without preparing")
}
func (stubConn) Begin() (driver.Tx, error) { panic("no operation needs a transaction") }
func (stubConn) Close() error              { return nil }

type stubRows struct {
	columns []string
	rows    [][]driver.Value
}

func (r *stubRows) Close() error      { return nil }
func (r *stubRows) Columns() []string { return r.columns }

func (r *stubRows) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

var claim = loki.Claim{Key: "key", Token: "token", Expiry: time.Second, Holder: "host/1", Supersedes: "older"}

// operations are every way to send something.
var operations = map[string]func(context.Context, *sqlhandler.Base) error{
	"lock":    func(ctx context.Context, h *sqlhandler.Base) error { _, err := h.Lock(ctx, claim); return err },
	"grant":   func(ctx context.Context, h *sqlhandler.Base) error { _, err := h.Grant(ctx, claim); return err },
	"extend":  func(ctx context.Context, h *sqlhandler.Base) error { _, err := h.Extend(ctx, claim); return err },
	"release": func(ctx context.Context, h *sqlhandler.Base) error { return h.Release(ctx, claim) },
	"inspect": func(ctx context.Context, h *sqlhandler.Base) error {
		_, _, err := h.Inspect(ctx, claim.Key)
		return err
	},
	"history": func(ctx context.Context, h *sqlhandler.Base) error {
		_, err := h.History(ctx, claim.Key, 5)
		return err
	},
}
