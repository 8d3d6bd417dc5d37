package migrations_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// process is the [postgrestest.TB] of the server that the tests share.
type process struct{ cleanups []func() }

func (*process) Helper()                           {}
func (p *process) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (*process) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

var (
	run     process
	started = sync.OnceValue(func() *postgrestest.Server { return postgrestest.Start(&run) })
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, f := range slices.Backward(run.cleanups) {
		f()
	}
	os.Exit(code)
}

// server is a database, and a schema in it that nobody else has.
type server struct {
	*sql.DB
	postgresname.Table
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{started().Open(t), postgresname.Table{Schema: "it's " + rand.Text(), Name: `a"b`}}
	s.exec(t, "CREATE SCHEMA "+postgresname.Quote(s.Schema))
	return s
}

func (s *server) apply(ctx context.Context, opts ...migrations.Option) error {
	return migrations.Apply(ctx, s.DB, append(opts, migrations.WithSchema(s.Schema), migrations.WithTable(s.Name))...)
}

// exec runs a statement written for the default table.
func (s *server) exec(t *testing.T, statement string) {
	t.Helper()
	_, err := s.ExecContext(t.Context(), s.Fill(statement))
	require.NoError(t, err, statement)
}

// run runs a file whose name begins with number and ends in direction.
func (s *server) run(t *testing.T, number, direction string) error {
	t.Helper()
	names, err := fs.Glob(migrations.Files, number+"*."+direction+".sql")
	require.NoError(t, err)
	require.Len(t, names, 1)
	text, err := migrations.Files.ReadFile(names[0])
	require.NoError(t, err)
	_, err = s.ExecContext(t.Context(), s.Fill(string(text)))
	return err
}

// requireWorking takes and gives back a lock.
func (s *server) requireWorking(t *testing.T, opts ...postgreshandler.Option) {
	t.Helper()
	opts = append(opts, postgreshandler.WithSchema(s.Schema), postgreshandler.WithTable(s.Name))
	require.NoError(t, postgreshandler.Check(t.Context(), s.DB, opts...))
	h := postgreshandler.New(s.DB, opts...)
	c := loki.Claim{Key: "at work", Token: rand.Text(), Expiry: time.Minute, Holder: "test"}
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(t.Context(), c))
}

var withHistory = postgreshandler.WithHistory(time.Hour)

func TestServerAppliedTwiceAndCutOff(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.apply(t.Context()))
	s.requireWorking(t)
	require.NoError(t, s.apply(t.Context()))
	require.NoError(t, s.apply(t.Context(), migrations.WithHistory()))
	s.requireWorking(t, withHistory)
	require.NoError(t, s.apply(t.Context(), migrations.WithHistory()))
	for range 2 { // as golang-migrate runs them, and again
		require.NoError(t, s.run(t, "000001", "up"))
		require.NoError(t, s.run(t, "000002", "up"))
	}

	s.exec(t, `DROP TABLE "public"."loki_lockings_history"`) // as if cut off between two files
	s.exec(t, `ALTER TABLE "public"."loki_lockings" DROP COLUMN ended_at`)
	require.NoError(t, s.apply(t.Context(), migrations.WithHistory()))
	s.requireWorking(t, withHistory)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.apply(ctx), context.Canceled)
}

// Several instances start at once, on nothing, whatever isolation level is a login's default.
func TestServerAppliedByManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable"} {
		s := newServer(t)
		s.DB = started().Open(t, fmt.Sprintf("default_transaction_isolation='%s'", level))
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				<-start
				if err := s.apply(t.Context(), migrations.WithHistory()); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		s.requireWorking(t, withHistory)
	}
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.apply(t.Context(), migrations.WithHistory()))
	s.exec(t, `INSERT INTO "public"."loki_lockings" VALUES ('k', 't', 'h', now(), now() + interval '1 hour', 1)`)
	require.ErrorContains(t, s.run(t, "000001", "down"), "claims are held")
	s.requireWorking(t, withHistory)
	s.exec(t, `UPDATE "public"."loki_lockings" SET expires_at = now()`)
	for range 2 {
		require.NoError(t, s.run(t, "000002", "down"))
	}
	s.requireWorking(t)
	for range 2 {
		require.NoError(t, s.run(t, "000001", "down"))
	}
	require.NoError(t, s.apply(t.Context(), migrations.WithHistory()), "and from the beginning")
	s.requireWorking(t, withHistory)
}

func TestServerLoginWithoutTheRights(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	role := "Loki " + rand.Text()
	s.exec(t, "CREATE ROLE "+postgresname.Quote(role)+" LOGIN")
	t.Cleanup(func() {
		_, err := s.ExecContext(context.WithoutCancel(t.Context()), "DROP OWNED BY "+postgresname.Quote(role)+"; DROP ROLE "+postgresname.Quote(role))
		require.NoError(t, err)
	})
	login := &server{started().Open(t, "user='"+role+"'"), s.Table}
	err := login.apply(t.Context())
	require.ErrorContains(t, err, "run what migrations.Script returns", "it may not even look")
	s.exec(t, "GRANT USAGE ON SCHEMA "+postgresname.Quote(s.Schema)+" TO "+postgresname.Quote(role))
	err = login.apply(t.Context())
	require.ErrorContains(t, err, s.Quoted())
	require.ErrorContains(t, err, "run what migrations.Script returns")

	script, err := migrations.Script(migrations.WithSchema(s.Schema), migrations.WithTable(s.Name))
	require.NoError(t, err)
	_, err = s.ExecContext(t.Context(), script)
	require.NoError(t, err)
	s.exec(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."loki_lockings" TO `+postgresname.Quote(role))
	require.NoError(t, login.apply(t.Context()), "a table that is fit needs no right to change it")
	login.requireWorking(t)

	other := newServer(t)
	other.exec(t, "CREATE VIEW \"public\".\"loki_lockings_history\" AS SELECT 1 AS ended_at")
	err = other.apply(t.Context(), migrations.WithHistory())
	require.ErrorContains(t, err, "if this login may not change it", "whatever the server's code")
	require.ErrorContains(t, err, "run what migrations.Script returns")

	nowhere := &server{s.DB, postgresname.Table{Schema: "no such schema", Name: "t"}}
	require.ErrorContains(t, nowhere.apply(t.Context()), "its schema does not exist")
}

func TestServerTableOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for says, made := range map[string]string{
		"the column token is missing":            `CREATE TABLE "public"."loki_lockings" (service_key text PRIMARY KEY)`,
		"the column fence is of type integer":    `CREATE TABLE "public"."loki_lockings" (service_key text PRIMARY KEY, token text NOT NULL, holder text NOT NULL, granted_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, fence int NOT NULL)`,
		"the column expires_at is of type":       `CREATE TABLE "public"."loki_lockings" (service_key text PRIMARY KEY, token text NOT NULL, holder text NOT NULL, granted_at timestamptz NOT NULL, expires_at timestamp NOT NULL, fence bigint NOT NULL)`,
		"service_key is not where it has to be":  `CREATE TABLE "public"."loki_lockings" (service_key text NOT NULL, token text NOT NULL, holder text NOT NULL, granted_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, fence bigint NOT NULL, PRIMARY KEY (service_key, token))`,
		"is unlogged":                            `CREATE UNLOGGED TABLE "public"."loki_lockings" (service_key text PRIMARY KEY, token text NOT NULL, holder text NOT NULL, granted_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, fence bigint NOT NULL)`,
		"is not a plain table":                   `CREATE VIEW "public"."loki_lockings" AS SELECT 1 AS service_key`,
		"a collation that takes different texts": `CREATE TABLE "public"."loki_lockings" (service_key text COLLATE loose PRIMARY KEY, token text NOT NULL, holder text NOT NULL, granted_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, fence bigint NOT NULL)`,
		"granted_at may be NULL":                 `CREATE TABLE "public"."loki_lockings" (service_key text PRIMARY KEY, token text NOT NULL, holder text NOT NULL, granted_at timestamptz, expires_at timestamptz NOT NULL, fence bigint NOT NULL)`,
	} {
		t.Run(strings.ReplaceAll(says, " ", "_"), func(t *testing.T) {
			s := newServer(t)
			if _, err := s.ExecContext(t.Context(), "CREATE COLLATION IF NOT EXISTS loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"); err != nil && strings.Contains(made, "loose") {
				t.Skipf("this server was built without ICU, and has only collations that compare exactly: %v", err)
			}
			s.exec(t, made)
			err := s.apply(t.Context())
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "WithTable")
		})
	}
}
