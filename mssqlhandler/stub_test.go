package mssqlhandler_test

import (
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

// granted and busy are answers to the grant statement, told where the server tells them.
func granted(fence int64) []sqltest.ResultSet {
	return []sqltest.ResultSet{answerOf(1, fence, nil, nil, nil, nil)}
}

func busy(holder string) []sqltest.ResultSet {
	return []sqltest.ResultSet{answerOf(), answerOf(0, 7, holder, int64(1_700_000_000_000_000), int64(1_700_000_009_000_000), int64(5_000_000))}
}

func answerOf(values ...driver.Value) sqltest.ResultSet {
	set := sqltest.ResultSet{Columns: []string{"Held", "Fence", "Holder", "Since", "Until", "Left"}}
	for i, v := range values {
		if n, ok := v.(int); ok {
			values[i] = int64(n)
		}
	}
	if values != nil {
		set.Rows = [][]driver.Value{values}
	}
	return set
}

// held is the answer to the extend statement.
func held(n int64) []sqltest.ResultSet {
	return []sqltest.ResultSet{{Columns: []string{"Held"}, Rows: [][]driver.Value{{n}}}}
}

// answers are what the server says to each operation when all is well.
var answers = map[string][]sqltest.ResultSet{
	"lock":    granted(4),
	"grant":   granted(4),
	"extend":  held(1),
	"release": {{Columns: []string{"Next", "Held"}, Rows: [][]driver.Value{{"next", int64(1)}}}},
	"inspect": {{Columns: []string{"Holder", "Since", "Until", "Left"}}},
}

// newStub returns a handler on a stub, the pool as database/sql has it by default.
func newStub(t *testing.T, answer func(int, sqltest.Call) ([]sqltest.ResultSet, error), opts ...mssqlhandler.Option) (*mssqlhandler.Handler, *sqltest.Stub, *sqlx.DB) {
	t.Helper()
	s := &sqltest.Stub{Answer: answer}
	db := sqlx.NewDb(sql.OpenDB(s), "sqlserver")
	t.Cleanup(func() { _ = db.Close() })
	return mssqlhandler.New(db, opts...), s, db
}
