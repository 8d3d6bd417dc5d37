package sqlhandler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// StatementText returns the text of a SQL file as it is sent: without the lines that are comments, which are for readers and
// would be sent with every call. A line that begins with "--+" belongs to a handler that keeps a history: if history is
// true it stays, without the mark. So a file is valid SQL as it stands, of a handler without a history.
func StatementText(file string, history bool) string {
	var b strings.Builder
	for line := range strings.Lines(file) {
		code := strings.TrimSpace(line)
		if rest, marked := strings.CutPrefix(code, "--+"); marked && history {
			b.WriteString(strings.Replace(line, code, strings.TrimSpace(rest), 1))
		} else if code != "" && !strings.HasPrefix(code, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Milliseconds returns d in whole milliseconds, rounded up: for how long a store keeps a claim.
func Milliseconds(d time.Duration) int64 { return roundUp(d, time.Millisecond) }

// Seconds returns d in whole seconds, rounded up, for an option that a statement takes as an int. It is an error if d is not
// positive or more than an int has, 68 years.
func Seconds(d time.Duration) (int64, error) {
	if d <= 0 || d > math.MaxInt32*time.Second {
		return 0, fmt.Errorf("%v is not possible: it must be positive and at most 68 years", d)
	}
	return roundUp(d, time.Second), nil
}

func roundUp(d, unit time.Duration) int64 { return int64((d-1)/unit) + 1 }

// answer is what a statement must answer: its name in the [Dialect], and the columns in their order.
type answer struct{ statement, columns string }

// The answers, as [Dialect] documents them.
var (
	grantAnswer   = answer{"Grant", "Held, Fence, Holder, Since, Until, Left"}
	extendAnswer  = answer{"Extend", "Held"}
	releaseAnswer = answer{"Release", "Next, Held"}
	inspectAnswer = answer{"Inspect", "Holder, Since, Until, Left"}
	historyAnswer = answer{"History", "Token, Holder, Fence, Since, Until, Outcome"}
)

// none returns the error of a statement that must answer a row and did not.
func (a answer) none() error {
	return fmt.Errorf("there was no answer: the dialect's %s has to answer a row in any case, with %s (Held is 0 where nothing is held); "+
		"if it does, something between the server and the driver swallows result sets", a.statement, a.columns)
}

// scan reads a row into dest. It ignores further columns: a store may answer more than is asked for.
func (a answer) scan(rows *sql.Rows, dest ...any) error {
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	if len(columns) < len(dest) {
		return fmt.Errorf("the dialect's %s answered with %d columns: it has to have %d: %s", a.statement, len(columns), len(dest), a.columns)
	}
	for len(dest) < len(columns) {
		dest = append(dest, new(any))
	}
	if err := rows.Scan(dest...); err != nil {
		return fmt.Errorf("the dialect's %s answered with something else than %s: %w", a.statement, a.columns, err)
	}
	return nil
}

// one sends the statement and scans the first row of the first result set that has one; found says whether any had.
func (s Statement) one(ctx context.Context, connect connector, c Call, a answer, dest ...any) (found bool, err error) {
	err = s.each(ctx, connect, c, func(rows *sql.Rows) error {
		if found {
			return nil
		}
		found = true
		return a.scan(rows, dest...)
	})
	return found && err == nil, err
}

// connector returns a connection of the pool for one statement.
type connector func() (*connection, error)

// each sends the statement and hands over the rows that it answers.
//
// It reads to the end of the last result set, because that is where a driver reports an error, and because closing
// early would cancel a batch on the server while it is still at work.
func (s Statement) each(ctx context.Context, connect connector, c Call, scan func(*sql.Rows) error) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	rows, err := conn.QueryContext(ctx, s.Text, s.Args(c)...)
	if errors.Is(err, driver.ErrBadConn) {
		return errStale
	}
	if err != nil {
		return err
	}
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	conn.answered = true
	return rows.Close()
}
