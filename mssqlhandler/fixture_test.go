package mssqlhandler_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// shared is what the tests of this run have together, made at the first need: to make a table, or a new connection, may
// take a server seconds.
var shared struct {
	sync.Once
	db    *sqlx.DB
	table string
	err   error
}

// session answers the settings of the session. A server that only speaks T-SQL may not see one in the moment that another one
// ends, so whoever looks for one looks again.
const session = `DECLARE @level int, @looks int = 0;
WHILE @level IS NULL AND @looks < 100
	SELECT @level = MAX(transaction_isolation_level), @looks = @looks + 1 FROM sys.dm_exec_sessions WHERE session_id = @@SPID;
SELECT CONCAT(@level, ' ', @@TRANCOUNT, ' ', @@SPID)`

// connections is enough for real contention.
const connections = 4

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.db != nil {
		for _, table := range []string{shared.table, shared.table + "History"} {
			if _, err := shared.db.Exec("DROP TABLE [dbo].[" + table + "]"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// store is a handler on the server that LOKI_TEST_MSSQL_DSN names, and keys of the test's own in the shared table.
type store struct {
	*mssqlhandler.Handler
	*sqltest.Store
	db    *sqlx.DB
	table string
}

// newStore returns a store on the shared pool.
func newStore(t *testing.T, opts ...mssqlhandler.Option) *store {
	t.Helper()
	dsn := dsn(t)
	shared.Do(func() {
		if shared.db, shared.err = sqlx.Open("sqlserver", dsn); shared.err != nil {
			return
		}
		shared.db.SetMaxOpenConns(connections)
		shared.db.SetMaxIdleConns(connections)
		shared.table = "loki_test_" + strings.ToLower(rand.Text())
		shared.err = migrations.Apply(context.WithoutCancel(t.Context()), shared.db.DB, migrations.WithTable(shared.table), migrations.WithHistory())
	})
	require.NoError(t, shared.err)
	s := &store{table: shared.table}
	s.use(shared.db, append(opts, mssqlhandler.WithTable(shared.table))...)
	return s
}

// use gives the store a handler of its table on another pool, or with other options.
func (s *store) use(db *sqlx.DB, opts ...mssqlhandler.Option) {
	s.db, s.Handler = db, mssqlhandler.New(db, opts...)
	const micros = "DATEDIFF_BIG(microsecond, '19700101', %s)"
	prefix := rand.Text() + ":"
	s.Store = &sqltest.Store{Handler: s.Handler, DB: db.DB, Admin: shared.db.DB, Prefix: prefix, RaisesFences: true, Statements: sqltest.Statements{
		Clock:    "SELECT " + fmt.Sprintf(micros, "SYSUTCDATETIME()"),
		Session:  session,
		PID:      "SELECT @@SPID",
		Kill:     "KILL %d",
		Rows:     s.on(fmt.Sprintf("SELECT COUNT(*) FROM $T WHERE LEFT(ServiceKey, %d) = @p1", len(prefix))),
		Key:      s.on("SELECT ServiceKey FROM $T WHERE Token = @p1"),
		Until:    s.on("SELECT " + fmt.Sprintf(micros, "ExpiresAt") + " FROM $T WHERE ServiceKey = @p1"),
		Expire:   s.on("UPDATE $T SET ExpiresAt = DATEADD(millisecond, -1, SYSUTCDATETIME()) WHERE ServiceKey = @p1"),
		SetFence: s.on("UPDATE $T SET Fence = @p2, ExpiresAt = SYSUTCDATETIME() WHERE ServiceKey = @p1"),
		AtWork: `DECLARE @at int = 0, @looks int = 0;
			WHILE @looks < 3
				SELECT @at = @at + COUNT(*), @looks = @looks + 1 FROM sys.dm_exec_sessions WHERE status NOT IN ('sleeping', 'idle') AND session_id = %d;
			SELECT @at`,
		Occupy: s.on("INSERT INTO $T (ServiceKey, CreationDate) VALUES (@p1, GETDATE())"),
	}}
}

// migrate makes the tables of a store that has some of its own, until the test ends.
func (s *store) migrate(t *testing.T) {
	t.Helper()
	require.NoError(t, migrations.Apply(t.Context(), s.db.DB, migrations.WithTable(s.table), migrations.WithHistory()))
	t.Cleanup(func() {
		for _, table := range []string{s.table, s.table + "History"} {
			_, err := shared.db.ExecContext(context.WithoutCancel(t.Context()), "DROP TABLE [dbo].["+table+"]")
			require.NoError(t, err)
		}
	})
}

// newStoreOn returns a store on a pool of its own.
func newStoreOn(t *testing.T, db *sql.DB, driverName string) *store {
	t.Helper()
	s := newStore(t)
	t.Cleanup(func() { _ = db.Close() })
	s.use(sqlx.NewDb(db, driverName), mssqlhandler.WithTable(shared.table))
	return s
}

func dsn(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv("LOKI_TEST_MSSQL_DSN")
	if dsn == "" {
		t.Skip("LOKI_TEST_MSSQL_DSN is not set: no T-SQL server to test against")
	}
	return dsn
}

// open opens the server under a name that a driver is registered by.
func open(t *testing.T, driverName string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driverName, dsn(t))
	require.NoError(t, err)
	return db
}

// warm has each connection of the pool run each statement. What is new to a connection may take a server seconds, which the
// calls that wait for it do not have.
func (s *store) warm(t *testing.T) {
	t.Helper()
	s.db.SetMaxIdleConns(connections)
	var callers sync.WaitGroup
	for i := range 2 * connections {
		callers.Go(func() {
			c := s.Claim(fmt.Sprint(i))
			for range 3 {
				_, lock := s.Lock(t.Context(), c)
				_, extend := s.Extend(t.Context(), c)
				_, _, inspect := s.Inspect(t.Context(), c.Key)
				if err := errors.Join(lock, extend, inspect, s.Release(t.Context(), c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

// exec runs a statement of the test's own. $T in it is the table, $H that of its history.
func (s *store) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	s.Exec(t, s.on(statement), args...)
}

// get scans the first column of the first row.
func (s *store) get(t *testing.T, dest any, statement string, args ...any) {
	t.Helper()
	s.Get(t, dest, s.on(statement), args...)
}

func (s *store) on(statement string) string {
	return strings.NewReplacer("$T", "[dbo].["+s.table+"]", "$H", "[dbo].["+s.table+"History]").Replace(statement)
}
