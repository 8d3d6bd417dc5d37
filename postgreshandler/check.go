package postgreshandler

import (
	"context"
	"database/sql"
	_ "embed" // the looks at the server and at the permissions
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgreserror"
	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestable"
	"github.com/lokilock/loki/sqlhandler"
)

//go:embed sql/server.sql
var serverSQL string

//go:embed sql/permissions.sql
var permissionsSQL string

// oldestVersion is the first that reads one page of a table when it is asked for one, as release does.
const oldestVersion = 14

// checkTimeout is what [Check] takes at most: a service that starts gives it the context that it runs with, which may not end.
const checkTimeout = 10 * time.Second

// Check says at start-up whether a handler made with the same options could work: whether the server is not too old,
// takes texts in UTF8 and does more than read, whether the table is there with the columns, types, collation and key that it needs and nothing
// that gets in the way (policies, rules, triggers before rows, columns to be filled), likewise that of a history, and
// whether this login may read and write them. It returns every fault at once, each in a sentence that says what to run,
// or nil. It changes nothing.
//
// A server that cannot answer now is an error too, for which [loki.IsUnavailable] is true: whether that is a reason not to
// start is the caller's to say. All of it takes ten seconds at most, and no longer than ctx lasts. The database stays open.
func Check(ctx context.Context, db *sql.DB, opts ...Option) error {
	if err := New(db, opts...).Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s := choose(opts)
	var (
		version               int
		encoding              string
		inRecovery, onlyReads bool
		login                 string
	)
	var found []error
	if err := preparesOnLent(ctx, db); err != nil && (ctx.Err() != nil || postgreserror.IsLent(err) && !isPgx(db.Driver())) {
		return s.explainLook(ctx, err)
	}
	look := unprepared{db}
	err := look.row(ctx, serverSQL).Scan(&version, &encoding, &inRecovery, &onlyReads, &login)
	if err != nil {
		return s.explainLook(ctx, err)
	}
	if version < oldestVersion {
		found = append(found, fmt.Errorf("postgreshandler: the server is PostgreSQL %d: it has to be %d at least, since before that each release reads the whole table", version, oldestVersion))
	}
	if encoding != "UTF8" {
		found = append(found, fmt.Errorf("postgreshandler: the client_encoding of this pool's sessions is %s, not UTF8, in which other instances would have other keys: add client_encoding=UTF8 to the data source name", encoding))
	}
	switch {
	case inRecovery:
		found = append(found, errors.New("postgreshandler: the server is a hot standby, which only reads: "+postgreserror.Writable))
	case onlyReads:
		found = append(found, errors.New("postgreshandler: the sessions of this pool only read (default_transaction_read_only is on, by the data source name, the role, the database or the server): "+
			"take it out of the data source name, or run ALTER ROLE ... SET default_transaction_read_only = off for this login"))
	}
	faults, err := postgrestable.Faults(ctx, look, s.table, s.keepsHistory())
	if err != nil {
		return s.explainDenied(ctx, login, err)
	}
	for _, fault := range faults {
		found = append(found, fmt.Errorf("postgreshandler: %s: run migrations.Apply%s, or have somebody who may run what migrations.Script returns for the same options; what is there and not fit is to be changed, or another table to be chosen", fault, s.withHistory()))
	}
	if len(faults) > 0 {
		return errors.Join(found...) // it may not be there to have rights on
	}
	for _, table := range s.tables() {
		var missing string
		err := look.row(ctx, permissionsSQL, table).Scan(&missing)
		if err != nil {
			return s.explainDenied(ctx, login, err)
		}
		if missing != "" {
			found = append(found, fmt.Errorf("postgreshandler: this login (%s) may not do all that a handler does with %s: run GRANT %s ON %[2]s TO %[4]s",
				login, table, missing, postgresname.Quote(login)))
		}
	}
	return errors.Join(found...)
}

// preparesOnLent returns the error of connecting, or of the driver's preparing a statement on a connection that a pooler has lent to another
// client before, where the same was prepared. A handler that cannot switch preparing off would fail so now and then.
func preparesOnLent(ctx context.Context, db *sql.DB) error {
	if db.Stats().MaxOpenConnections == 1 {
		return nil
	}
	for range 2 {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		var answer string
		if err := conn.QueryRowContext(ctx, "SELECT $1::text", "loki").Scan(&answer); err != nil {
			return err
		}
	}
	return nil
}

// unprepared is a database whose statements are not prepared, where that can be chosen for each.
type unprepared struct{ db *sql.DB }

func (u unprepared) args(args []any) []any {
	if isPgx(u.db.Driver()) {
		return append([]any{pgx.QueryExecModeExec}, args...)
	}
	return args
}

// QueryContext is that of a [sql.DB].
func (u unprepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return u.db.QueryContext(ctx, query, u.args(args)...)
}

func (u unprepared) row(ctx context.Context, file string, args ...any) *sql.Row {
	return u.db.QueryRowContext(ctx, sqlhandler.StatementText(file, false), u.args(args)...)
}

// tables are those that the statements name.
func (s settings) tables() []string {
	if s.keepsHistory() {
		return []string{s.table.Quoted(), s.table.QuotedHistory()}
	}
	return []string{s.table.Quoted()}
}

func (s settings) explainLook(ctx context.Context, err error) error {
	verdict, advice := postgreserror.Judge(err)
	if advice == postgreserror.AskCheck {
		advice = ""
	} else if advice != "" {
		advice += ": "
	}
	told := fmt.Errorf("postgreshandler: looking at %s: %s%w", s.table.Quoted(), advice, postgreserror.Shown(err))
	if !errors.Is(ctx.Err(), context.Canceled) && verdict != sqlhandler.VerdictUnknown && verdict != sqlhandler.VerdictPermanent {
		return loki.Unavailable(told)
	}
	return told
}

// explainDenied is explainLook for what only a login without USAGE on the schema is refused. The server does not say what it
// lacks on the table.
func (s settings) explainDenied(ctx context.Context, login string, err error) error {
	if !postgreserror.IsDenied(err) {
		return s.explainLook(ctx, err)
	}
	return fmt.Errorf("postgreshandler: this login (%s) needs USAGE on the schema of %s: run GRANT USAGE ON SCHEMA %s TO %s, and check again: %w",
		login, s.table.Quoted(), postgresname.Quote(s.table.Schema), postgresname.Quote(login), err)
}

// withHistory is what migrations.Apply has to be given, for a sentence.
func (s settings) withHistory() string {
	if s.keepsHistory() {
		return " with migrations.WithHistory"
	}
	return ""
}
