package postgreshandler

import (
	"database/sql/driver"
	_ "embed" // the statements
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgreserror"
	"github.com/lokilock/loki/sqlhandler"
)

var (
	//go:embed sql/grant.sql
	grantSQL string
	//go:embed sql/extend.sql
	extendSQL string
	//go:embed sql/release.sql
	releaseSQL string
	//go:embed sql/inspect.sql
	inspectSQL string
	//go:embed sql/history.sql
	historySQL string
)

// maxToken is no column's limit, since text has none, but that of the other handlers: what fits one store fits all.
const maxToken = 128

// newDialect is PostgreSQL's SQL for one table. Every argument has its type in the statement, so that the statements work
// in each of pgx's modes, also in those where nothing is prepared.
//
// They are prepared as the data source name has it, until that fails behind a pooler which lends connections on. From
// then on they are not, which costs the server a plan for each.
func newDialect(s settings, d driver.Driver) sqlhandler.Dialect {
	var unprepared atomic.Bool
	statement := func(file string, args func(sqlhandler.Call) []any) sqlhandler.Statement {
		return sqlhandler.Statement{Text: s.table.Fill(sqlhandler.StatementText(file, s.keepsHistory())), Args: func(c sqlhandler.Call) []any {
			if unprepared.Load() {
				return append([]any{pgx.QueryExecModeExec}, args(c)...)
			}
			return args(c)
		}}
	}
	dialect := sqlhandler.Dialect{
		Name:      "postgreshandler",
		Table:     s.table.Quoted(),
		Grant:     statement(grantSQL, s.grantArgs),
		Extend:    statement(extendSQL, s.extendArgs),
		Release:   statement(releaseSQL, s.releaseArgs),
		Inspect:   statement(inspectSQL, s.inspectArgs),
		Overtaken: true, // a snapshot is older than the wait for the gate
		MaxKey:    loki.MaxKeyLength,
		MaxToken:  maxToken,
		Judge: func(err error) (sqlhandler.Verdict, string) {
			if isPgx(d) && postgreserror.IsLent(err) {
				unprepared.Store(true)
				return sqlhandler.VerdictRetry, postgreserror.BehindPooler
			}
			return postgreserror.Judge(err)
		},
		Conceal: postgreserror.Shown,
		Invalid: s.err,
	}
	if s.keepsHistory() {
		dialect.History = statement(historySQL, s.historyArgs)
	}
	return dialect
}

// isPgx reports whether d is pgx itself, which takes the mode of a query from its first argument. What is wrapped around it
// may take that for an argument of the statement.
func isPgx(d driver.Driver) bool {
	_, is := d.(*stdlib.Driver)
	return is
}

func (s settings) grantArgs(c sqlhandler.Call) []any {
	args := []any{c.Key, c.Token, c.Holder, sqlhandler.Milliseconds(c.Expiry), c.Fence, c.Supersedes}
	if s.keepsHistory() {
		args = append(args, string(c.Ending))
	}
	return args
}

func (s settings) extendArgs(c sqlhandler.Call) []any {
	args := []any{c.Key, c.Token, sqlhandler.Milliseconds(c.Expiry), c.Fence}
	if s.keepsHistory() {
		args = append(args, string(c.Ending))
	}
	return args
}

func (s settings) releaseArgs(c sqlhandler.Call) []any {
	args := []any{c.Key, c.Token, c.Quiet || s.silent}
	if s.keepsHistory() {
		args = append(args, string(c.Ending), s.keepSeconds)
	}
	return args
}

func (s settings) inspectArgs(c sqlhandler.Call) []any { return []any{c.Key} }

func (s settings) historyArgs(c sqlhandler.Call) []any { return []any{c.Key, int64(c.Limit)} }
