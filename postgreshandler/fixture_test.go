package postgreshandler_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// shared is the server that tests have together which do no harm to it, started at the first need.
var shared struct {
	sync.Once
	*postgrestest.Server
	db *sql.DB // the superuser's
}

// connections is enough for real contention.
const connections = 4

func TestMain(m *testing.M) {
	code := m.Run()
	run.end()
	os.Exit(code)
}

// process is the [postgrestest.TB] of what lasts as long as the test process.
type process struct{ cleanups []func() }

var run process

func (*process) Helper()                           {}
func (p *process) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (*process) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (p *process) end() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
}

// server is the shared one.
func server() *postgrestest.Server {
	shared.Do(func() {
		shared.Server = postgrestest.Start(&run)
		shared.db = shared.Open(&run)
	})
	return shared.Server
}

// doomedServer is another server, for tests that do harm to it, and leave it running. They are not parallel.
var doomedServer = sync.OnceValue(func() *postgrestest.Server { return postgrestest.Start(&run) })

// store is a handler on tables of the test's own.
type store struct {
	*postgreshandler.Handler
	*sqltest.Store
	server *postgrestest.Server
	db     *sql.DB
	schema string
	opts   []postgreshandler.Option
}

// newStore returns a store on the shared server, with a pool of its own. The tables are there, also the history's.
func newStore(t *testing.T, opts ...postgreshandler.Option) *store {
	t.Helper()
	return newStoreOn(t, server(), opts...)
}

func newStoreOn(t *testing.T, server *postgrestest.Server, opts ...postgreshandler.Option) *store {
	t.Helper()
	db := server.Open(t)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	s := &store{server: server, schema: "test " + strings.ToLower(rand.Text())}
	_, err := db.ExecContext(t.Context(), `CREATE SCHEMA "`+s.schema+`"`)
	require.NoError(t, err)
	require.NoError(t, migrations.Apply(t.Context(), db, migrations.WithSchema(s.schema), migrations.WithHistory()))
	s.opts = append(opts, postgreshandler.WithSchema(s.schema))
	return s.with(db, postgreshandler.New(db, s.opts...))
}

// with returns another handler of the same tables.
func (s *store) with(db *sql.DB, h *postgreshandler.Handler) *store {
	other := *s
	other.db, other.Handler = db, h
	const micros = "(extract(epoch FROM %s) * 1000000)::bigint"
	other.Store = &sqltest.Store{Handler: h, DB: db, Admin: db, EndsAtOnce: true, Statements: sqltest.Statements{
		Clock:    "SELECT " + fmt.Sprintf(micros, "clock_timestamp()"),
		Session:  "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) || pg_backend_pid() || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) FROM pg_settings WHERE source = 'session' OR name LIKE '%isolation'",
		PID:      "SELECT pg_backend_pid()",
		Kill:     "SELECT pg_terminate_backend(%d, 5000)",
		Rows:     s.fill("SELECT count(*) FROM $T WHERE starts_with(service_key, $1)"),
		Key:      s.fill("SELECT service_key FROM $T WHERE token = $1"),
		Until:    s.fill("SELECT " + fmt.Sprintf(micros, "expires_at") + " FROM $T WHERE service_key = $1"),
		Expire:   s.fill("UPDATE $T SET expires_at = greatest(granted_at, clock_timestamp() - interval '1 millisecond') WHERE service_key = $1"),
		SetFence: s.fill("UPDATE $T SET fence = $2, expires_at = clock_timestamp() WHERE service_key = $1"),
		Occupy:   s.fill("INSERT INTO $T VALUES ($1, 't', 'h', now(), now(), 1)"),
		AtWork:   "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND pid = %d",
	}}
	return &other
}

// on is a handler of the same tables on another database.
func (s *store) on(db *sql.DB) *store { return s.with(db, postgreshandler.New(db, s.opts...)) }

// open returns another pool on the store's server, with params added to its data source name.
func (s *store) open(t *testing.T, params ...string) *store {
	t.Helper()
	return s.on(s.server.Open(t, params...))
}

// openAs is open with a driver of another name.
func (s *store) openAs(t *testing.T, driverName string) *store {
	t.Helper()
	db, err := sql.Open(driverName, s.server.DSN())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return s.on(db)
}

// fill puts the tables' names for $T and $H.
func (s *store) fill(statement string) string {
	return strings.NewReplacer("$T", `"`+s.schema+`"."loki_lockings"`, "$H", `"`+s.schema+`"."loki_lockings_history"`).Replace(statement)
}

// exec runs a statement of the test's own.
func (s *store) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := s.db.ExecContext(t.Context(), s.fill(statement), args...)
	require.NoError(t, err)
}

// get scans the first column of the first row.
func (s *store) get(t *testing.T, dest any, statement string, args ...any) {
	t.Helper()
	require.NoError(t, s.db.QueryRowContext(t.Context(), s.fill(statement), args...).Scan(dest))
}

// within is a context that ends.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
