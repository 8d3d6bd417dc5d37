package postgreshandler_test

// This file is the server that tests share: a schema, a pool, and tables of each test's own.

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

	"github.com/lokilock/loki"
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
	s := &store{server: server, db: server.Open(t), schema: "test " + strings.ToLower(rand.Text())}
	s.db.SetMaxOpenConns(connections)
	s.db.SetMaxIdleConns(connections)
	_, err := s.db.ExecContext(t.Context(), `CREATE SCHEMA "`+s.schema+`"`)
	require.NoError(t, err)
	require.NoError(t, migrations.Apply(t.Context(), s.db, migrations.WithSchema(s.schema), migrations.WithHistory()))
	s.opts = append(opts, postgreshandler.WithSchema(s.schema))
	s.Handler = postgreshandler.New(s.db, s.opts...)
	return s
}

// on is a handler of the same tables on another database.
func (s *store) on(db *sql.DB) *store {
	other := *s
	other.db = db
	other.Handler = postgreshandler.New(db, s.opts...)
	return &other
}

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

// claim is a new claim.
func (s *store) claim(key string) loki.Claim {
	return loki.Claim{Key: key, Token: rand.Text(), Expiry: 30 * time.Second, Holder: "host/" + rand.Text()[:4]}
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

// rows is how many rows the table has.
func (s *store) rows(t *testing.T) (n int) {
	t.Helper()
	s.get(t, &n, "SELECT count(*) FROM $T")
	return n
}

// expire ends the claim on key as time would.
func (s *store) expire(t *testing.T, key string) {
	t.Helper()
	s.exec(t, "UPDATE $T SET expires_at = greatest(granted_at, clock_timestamp() - interval '1 millisecond') WHERE service_key = $1", key)
}

func (s *store) mustGrant(t *testing.T, c loki.Claim) int64 {
	t.Helper()
	g, err := s.Grant(t.Context(), c)
	require.NoError(t, err)
	require.True(t, g.Held)
	require.Zero(t, g.HeldBy)
	return g.Fence
}

func (s *store) mustBeBusy(t *testing.T, c loki.Claim) loki.Holder {
	t.Helper()
	g, err := s.Grant(t.Context(), c)
	require.NoError(t, err)
	require.False(t, g.Held)
	require.Zero(t, g.Fence)
	require.NotEmpty(t, g.HeldBy.ID, "whoever is refused is told by whom")
	return g.HeldBy
}

func (s *store) mustRelease(t *testing.T, c loki.Claim) {
	t.Helper()
	require.NoError(t, s.Release(t.Context(), c))
}

func (s *store) mustExtend(t *testing.T, c loki.Claim, want bool) {
	t.Helper()
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, held)
}

// everyOperation uses each statement once.
func (s *store) everyOperation(t *testing.T) {
	t.Helper()
	c := s.claim("every operation")
	fence := s.mustGrant(t, c)
	require.Equal(t, fence, s.mustGrant(t, c))
	s.mustBeBusy(t, s.claim("every operation"))
	s.mustExtend(t, c, true)
	_, held, err := s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	require.True(t, held)
	s.mustRelease(t, c)
	require.Zero(t, s.rows(t))
}

// within is a context that ends.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
