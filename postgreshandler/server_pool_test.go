package postgreshandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
)

// A call that is refused, or fails, gives its connection back.
func TestCase029_NoConnectionLeaks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.db.SetMaxOpenConns(2)
	s.MustGrant(t, s.Claim("k"))
	missing := postgreshandler.New(s.db, postgreshandler.WithSchema("no such schema"))
	for range 25 {
		s.MustBeBusy(t, s.Claim("k"))
		_, err := missing.Lock(within(t, 20*time.Second), s.Claim("k"))
		require.ErrorContains(t, err, "run migrations.Apply")
	}
	require.Zero(t, s.db.Stats().InUse)
	s.MustGrant(t, s.Claim("free"))
}

// A DBA's default isolation level costs a repetition, and never a lock that two hold.
func TestCase064_DefaultIsolationLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable", "repeatable read"} {
		for name, opts := range map[string][]postgreshandler.Option{
			"":             nil,
			" and history": {postgreshandler.WithHistory(time.Hour)},
		} {
			t.Run(level+name, func(t *testing.T) {
				t.Parallel()
				s := newStore(t, opts...).open(t, fmt.Sprintf("default_transaction_isolation='%s'", level))
				s.db.SetMaxOpenConns(8)
				s.db.SetMaxIdleConns(8)
				s.EveryOperation(t)
				granted, unanswered := sqltest.RandomClaims(t, s.Store)
				require.Greater(t, granted, 10)
				require.Less(t, unanswered, granted, "losing a race is an answer, as a rule")
			})
		}
	}
}

// Open keeps the connections that a burst of callers needed, so that the next burst finds them.
func TestOpenKeepsTheConnectionsOfABurst(t *testing.T) {
	t.Parallel()
	const callers = 16 // as many as a handler has acquiring at once
	s := newStore(t)
	name := "burst " + s.schema
	h, err := postgreshandler.Open(s.server.DSN("application_name='"+name+"'"), s.opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })

	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	_, err = tx.ExecContext(t.Context(), s.Occupy, "k")
	require.NoError(t, err)
	var burst sync.WaitGroup
	for range callers {
		burst.Go(func() {
			if _, err := h.Lock(t.Context(), s.Claim("k")); err != nil {
				t.Error(err)
			}
		})
	}
	sessions := func(state string) (n int) {
		s.get(t, &n, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND (wait_event_type = 'Lock') = ($2 = 'waiting')", name, state)
		return n
	}
	require.Eventually(t, func() bool { return sessions("waiting") == callers }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Rollback())
	burst.Wait()
	require.Equal(t, callers, sessions("idle"))
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
		s.open(t, params...).EveryOperation(t)
	}
}

// A driver of another name, a connector of one's own, a driver that is wrapped: the statements are the same.
func TestCase070_EveryDriverName(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	register()
	for _, name := range []string{"pgx/v5", "traced-pgx"} {
		s.openAs(t, name).EveryOperation(t)
	}
	h, err := postgreshandler.Open(s.server.DSN(), s.opts...)
	require.NoError(t, err)
	s.with(s.db, h).EveryOperation(t)
	require.NoError(t, h.Close())
	_, err = h.Lock(t.Context(), s.Claim("k"))
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
