package postgreshandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
)

// granted is an answer to the grant statement.
func granted(fence int64) []sqltest.ResultSet {
	return sqltest.Row(true, fence, "h", int64(1), int64(2), int64(1))
}

// newStub returns a handler on a stub.
func newStub(t *testing.T, answer func(int, sqltest.Call) ([]sqltest.ResultSet, error), opts ...postgreshandler.Option) (*postgreshandler.Handler, *sqltest.Stub) {
	t.Helper()
	s := &sqltest.Stub{Answer: answer}
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return postgreshandler.New(db, opts...), s
}

// silent is a server that takes connections and says nothing.
type silent struct{}

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Driver() driver.Driver { return nil }
