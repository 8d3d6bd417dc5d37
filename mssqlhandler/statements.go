package mssqlhandler

// This file is the statements: the SQL files made fit for one table and one driver, and their arguments.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed" // the statements
	"fmt"
	"math"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lokilock/loki/internal/mssqlname"
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
)

// statements are what is sent. They use @p1, @p2, ... and positional arguments, which every wrapper of the driver
// passes on, and never sqlx's bind variables: those depend on the name under which the driver was registered.
type statements struct {
	grant, extend, release, inspect string
}

func newStatements(table mssqlname.Table, d driver.Driver) statements {
	fit := func(text string) string {
		text = table.Fill(withoutComments(text))
		if countsPlaceholders(d) {
			text = strings.ReplaceAll(text, "@p", "?")
		}
		return text
	}
	return statements{grant: fit(grantSQL), extend: fit(extendSQL), release: fit(releaseSQL), inspect: fit(inspectSQL)}
}

// withoutComments keeps what is meant for readers off the wire, where it would be sent with every call.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if code := strings.TrimSpace(line); code != "" && !strings.HasPrefix(code, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
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

// text is a string argument. It is declared as nvarchar(max) whatever its length: declared by length, as a Go string
// is, every length of key would compile and cache a plan of its own. The statements copy it into a variable of the
// column's type before they compare, so that the key is sought and not scanned for.
func text(s string) any { return mssql.NVarCharMax(s) }

// endMark is put after a key that ends in a blank, which the server would ignore when it compares, and after one that
// ends in the mark itself: so no two keys become one. No other key is changed, and a Locker makes none of these.
const endMark = "\x1f"

// remembered is the key of the row that release keeps fences in: no key is stored like this.
const remembered = "fence" + endMark

// stored is key as it stands in the table.
func stored(key string) any {
	if strings.HasSuffix(key, " ") || strings.HasSuffix(key, endMark) {
		key += endMark
	}
	return text(key)
}

// expiry is d rounded up to the millisecond, as whole seconds and the milliseconds beyond them.
func expiry(d time.Duration) (seconds, milliseconds int64) {
	ms := int64((d-1)/time.Millisecond) + 1
	return ms / 1000, ms % 1000
}

// longestExpiry is what fits an int of seconds.
const longestExpiry = math.MaxInt32 * time.Second

// row is what the grant and inspect statements tell.
type row struct {
	held         bool
	fence        int64
	holder       sql.NullString
	since, until sql.NullInt64 // microseconds since 1970
	left         sql.NullInt64 // microseconds
}

// query runs statement and scans the first row of the first result set that has one; found says whether any had.
//
// It reads to the end of the last result set, because that is where the driver tells of an error, and because closing
// early would cancel the batch on the server while it is still at work.
func query(ctx context.Context, db *sql.DB, statement string, args, dest []any) (found bool, err error) {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			if found {
				continue
			}
			if err := rows.Scan(dest...); err != nil {
				return false, fmt.Errorf("unexpected answer: %w", err)
			}
			found = true
		}
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	return found, rows.Close()
}
