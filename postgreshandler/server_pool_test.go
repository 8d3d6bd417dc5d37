package postgreshandler_test

// This file is about the pool that the handler shares with the application, its settings, and what is between it and the
// server.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

func TestCase064_PoolOfOneAndItsSettings(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	s.db.SetMaxOpenConns(1)
	const settings = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) || pg_backend_pid() FROM pg_settings WHERE source = 'session' OR name LIKE '%isolation'"
	var before, after string
	s.get(t, &before, settings)
	s.everyOperation(t)
	s.get(t, &after, settings)
	require.Equal(t, before, after)
	var locks int
	s.get(t, &locks, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
	require.Zero(t, locks, "no gate stays closed")
	require.Zero(t, s.db.Stats().InUse)
}

// A call that is refused, or fails, gives its connection back.
func TestCase029_NoConnectionLeaks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.db.SetMaxOpenConns(2)
	s.mustGrant(t, s.claim("k"))
	missing := postgreshandler.New(s.db, postgreshandler.WithSchema("no such schema"))
	for range 25 {
		s.mustBeBusy(t, s.claim("k"))
		_, err := missing.Lock(within(t, 20*time.Second), s.claim("k"))
		require.ErrorContains(t, err, "run migrations.Apply")
	}
	require.Zero(t, s.db.Stats().InUse)
	s.mustGrant(t, s.claim("free"))
}

// The claim is not part of the caller's transaction, is visible to others at once and stays when that is rolled back.
func TestCase063_ForeignTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.db.SetMaxOpenConns(2)
	tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), s.fill("SELECT count(*) FROM $T"))
	require.NoError(t, err)

	c := s.claim("k")
	s.mustGrant(t, c)
	s.mustBeBusy(t, s.claim("k"))
	require.NoError(t, tx.Rollback())
	s.mustBeBusy(t, s.claim("k"))
	s.mustRelease(t, c)
	require.Zero(t, s.rows(t))
}

// A DBA's default isolation level costs a repetition, and never a lock that two hold.
func TestCase064_DefaultIsolationLevels(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	for _, level := range []string{"serializable", "repeatable read"} {
		t.Run(level, func(t *testing.T) {
			db := s.server.Open(t, fmt.Sprintf("default_transaction_isolation='%s'", level))
			db.SetMaxOpenConns(8)
			db.SetMaxIdleConns(8)
			strict := s.on(db)
			strict.everyOperation(t)
			for round := range 30 {
				var (
					wg   sync.WaitGroup
					mu   sync.Mutex // guards held
					held []loki.Claim
				)
				for range 8 {
					wg.Go(func() {
						c := s.claim(fmt.Sprint(level, round))
						got, err := strict.Lock(t.Context(), c)
						if err != nil && !loki.IsUnavailable(err) {
							t.Error(err)
						}
						if got {
							mu.Lock()
							defer mu.Unlock()
							held = append(held, c)
						}
					})
				}
				wg.Wait()
				require.Len(t, held, 1)
				strict.mustRelease(t, held[0])
			}
		})
	}
}

// Whatever a login or database has for defaults, the statements mean the same.
func TestServerSettingsOfASession(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	for _, params := range [][]string{
		{"default_query_exec_mode=exec"},
		{"default_query_exec_mode=simple_protocol"},
		{"default_query_exec_mode=describe_exec"},
		{"default_query_exec_mode=cache_describe"},
		{"search_path=pg_catalog"},
		{"search_path="},
		{"synchronous_commit=off"},
		{"plan_cache_mode=force_generic_plan"},
		{"enable_indexscan=off", "enable_bitmapscan=off", "enable_tidscan=off"},
		{"client_min_messages=debug1"},
		{"extra_float_digits=-15"},
		{"lc_numeric=C", "bytea_output=escape"},
		{"row_security=off"},
		{"default_transaction_deferrable=on"},
	} {
		s.open(t, params...).everyOperation(t)
	}
}

// killAll leaves n idle connections in the store's pool whose sessions the server has ended.
func (s *store) killAll(t *testing.T, n int) {
	t.Helper()
	s.db.SetMaxIdleConns(n)
	var conns []*sql.Conn
	for range n {
		conn, err := s.db.Conn(t.Context())
		require.NoError(t, err)
		var pid int
		for conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid) != nil { // one that died last time
			require.NoError(t, conn.Close())
			conn, err = s.db.Conn(t.Context())
			require.NoError(t, err)
		}
		conns = append(conns, conn)
		_, err = shared.db.ExecContext(t.Context(), "SELECT pg_terminate_backend($1, 5000)", pid)
		require.NoError(t, err)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Equal(t, n, s.db.Stats().Idle)
}

// A claim does not live in a connection: ended sessions cost it nothing, and the next call finds a new one.
func TestCase067_LockIsNotBoundToAConnection(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(server().DSN())
	require.NoError(t, err)
	// As Open has it: pgx finds none of the dead by asking them first.
	unasked := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
	db := stdlib.OpenDB(*config, unasked)
	t.Cleanup(func() { _ = db.Close() })
	s := newStore(t).on(db)
	c := s.claim("k")
	s.mustGrant(t, c)
	s.killAll(t, 4)
	s.mustExtend(t, c, true)
	s.killAll(t, 4)
	s.mustBeBusy(t, s.claim("k"))
	s.killAll(t, 4)
	s.mustRelease(t, c)
	s.killAll(t, 4)
	s.mustGrant(t, c)
}

// A call whose caller leaves while it waits for a row leaves nothing behind, not even a waiting session.
func TestServerContextEndsWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	c := s.claim("k")
	_, err = tx.ExecContext(t.Context(), s.fill("INSERT INTO $T VALUES ($1, 't', 'h', now(), now(), 1)"), c.Key)
	require.NoError(t, err)

	_, err = s.Lock(within(t, 200*time.Millisecond), c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool {
		var waiting int
		s.get(t, &waiting, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%'||$1||'%'", s.schema)
		return waiting == 0
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Rollback())
	require.Zero(t, s.rows(t))
	s.everyOperation(t)
	require.Zero(t, s.db.Stats().InUse)
}

// A driver of another name, a connector of one's own, a driver that is wrapped: the statements are the same.
func TestCase070_EveryDriverName(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	register()
	for _, name := range []string{"pgx/v5", "traced-pgx"} {
		s.openAs(t, name).everyOperation(t)
	}
	h, err := postgreshandler.Open(s.server.DSN(), s.opts...)
	require.NoError(t, err)
	opened := *s
	opened.Handler = h
	opened.everyOperation(t)
	require.NoError(t, h.Close())
	_, err = h.Lock(t.Context(), s.claim("k"))
	require.ErrorContains(t, err, "database is closed")
	require.False(t, loki.IsUnavailable(err))
}

// register may be called again, by a test that is run several times.
var register = sync.OnceFunc(func() { sql.Register("traced-pgx", tracing{stdlib.GetDefaultDriver()}) })

// tracing wraps a driver as instrumentation does, and hides all of it but the interfaces of database/sql.
type tracing struct{ driver.Driver }

func (d tracing) Open(name string) (driver.Conn, error) {
	conn, err := d.Driver.Open(name)
	return tracedConn{conn}, err
}

type tracedConn struct{ driver.Conn }

func (c tracedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}
