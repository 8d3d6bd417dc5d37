package mssqlhandler

import (
	"database/sql"
	"database/sql/driver"
	_ "embed" // the statements
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

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

// The columns' lengths, in UTF-16 units. A longer key or token would be cut by the server, which is never the answer.
const (
	maxKey   = 400
	maxToken = 128
)

// newDialect is T-SQL for one table. The statements use @p1, @p2, ... and positional arguments, which every wrapper of the
// driver passes on, and never sqlx's bind variables: those depend on the name under which the driver was registered.
func newDialect(s settings, d driver.Driver) sqlhandler.Dialect {
	counts := d != nil && countsPlaceholders(d)
	statement := func(file string, args func(sqlhandler.Call) []any) sqlhandler.Statement {
		text := sqlhandler.StatementText(file, s.keepsHistory())
		if counts {
			text = strings.ReplaceAll(text, "@p", "?") // before there are names in it, which may have one
		}
		return sqlhandler.Statement{Text: s.table.Fill(text), Args: args}
	}
	dialect := sqlhandler.Dialect{
		Name:     "mssqlhandler",
		Table:    s.table.Quoted(),
		Grant:    statement(grantSQL, s.grantArgs),
		Extend:   statement(extendSQL, s.extendArgs),
		Release:  statement(releaseSQL, s.releaseArgs),
		Inspect:  statement(inspectSQL, s.inspectArgs),
		MaxKey:   maxKey,
		MaxToken: maxToken,
		Refuse:   refuse,
		Judge:    judge,
		Invalid:  s.err,
	}
	if s.keepsHistory() {
		dialect.History = statement(historySQL, s.historyArgs)
	}
	return dialect
}

func (s settings) grantArgs(c sqlhandler.Call) []any {
	seconds, milliseconds := expiry(c)
	args := []any{text(c.Key), text(c.Token), text(c.Holder), seconds, milliseconds, c.Fence, text(c.Supersedes), s.lokinetSeconds, text(remembered)}
	if s.keepsHistory() {
		args = append(args, text(string(c.Ending)))
	}
	return args
}

func (s settings) extendArgs(c sqlhandler.Call) []any {
	seconds, milliseconds := expiry(c)
	args := []any{text(c.Key), text(c.Token), seconds, milliseconds, c.Fence}
	if s.keepsHistory() {
		args = append(args, text(string(c.Ending)))
	}
	return args
}

func (s settings) releaseArgs(c sqlhandler.Call) []any {
	args := []any{text(c.Key), text(c.Token), text(remembered), text(c.SweepFrom)}
	if s.keepsHistory() {
		args = append(args, text(string(c.Ending)), s.keepSeconds)
	}
	return args
}

func (s settings) inspectArgs(c sqlhandler.Call) []any { return []any{text(c.Key), s.lokinetSeconds} }

func (s settings) historyArgs(c sqlhandler.Call) []any { return []any{text(c.Key), int64(c.Limit)} }

// text is a string argument. It is declared as nvarchar(max) whatever its length: declared by length, as a Go string
// is, every length of key would compile and cache a plan of its own. The statements copy it into a variable of the
// column's type before they compare, so that the key is sought and not scanned for.
func text(s string) any { return mssql.NVarCharMax(s) }

// expiry is the claim's in whole seconds and the milliseconds beyond them.
func expiry(c sqlhandler.Call) (seconds, milliseconds int64) {
	ms := sqlhandler.Milliseconds(c.Expiry)
	return ms / 1000, ms % 1000
}

// remembered is the key, and the token, of the row in which release remembers fencing tokens.
const remembered = "fence\x1f"

// refuse returns why the server would take s for another text, or for what it is not.
func refuse(_, s string) string {
	switch {
	case strings.HasSuffix(s, " "):
		return "ends in a blank, which SQL Server ignores when it compares"
	case s == remembered:
		return "is the key under which fencing tokens are remembered"
	}
	return ""
}

// countsPlaceholders reports whether d is go-mssqldb under its old name "mssql". That one turns ?1 into @p1 and counts
// what it turned, so that a statement with @p1 in it would have none and database/sql would refuse the arguments.
func countsPlaceholders(d driver.Driver) bool {
	old, err := sql.Open("mssql", "server=none") // nothing is dialled
	if err != nil {
		return false
	}
	defer old.Close()
	return d == old.Driver()
}
