package postgreshandler_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
)

var claim = loki.Claim{Key: "invoice-batch", Token: "7f3a", Expiry: 30 * time.Second, Holder: "host/1", Fence: 5, Supersedes: "older"}

// operations are every way to send a statement.
var operations = map[string]func(context.Context, *postgreshandler.Handler) error{
	"lock":  func(ctx context.Context, h *postgreshandler.Handler) error { _, err := h.Lock(ctx, claim); return err },
	"grant": func(ctx context.Context, h *postgreshandler.Handler) error { _, err := h.Grant(ctx, claim); return err },
	"extend": func(ctx context.Context, h *postgreshandler.Handler) error {
		_, err := h.Extend(ctx, claim)
		return err
	},
	"release": func(ctx context.Context, h *postgreshandler.Handler) error { return h.Release(ctx, claim) },
	"inspect": func(ctx context.Context, h *postgreshandler.Handler) error {
		_, _, err := h.Inspect(ctx, claim.Key)
		return err
	},
}

func code(state string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: state, Message: "message of " + state}
}

func TestOutages(t *testing.T) {
	outages := map[string]error{
		"reset":             &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"eof":               io.EOF,
		"cut short":         fmt.Errorf("failed to receive message: %w", io.ErrUnexpectedEOF),
		"no primary":        fmt.Errorf("ValidateConnect failed: %w", pgconn.ErrReadOnlyConnection),
		"standby":           fmt.Errorf("ValidateConnect failed: %w", pgconn.ErrStandbyConnection),
		"closed":            pgconn.ErrConnClosed,
		"wrapped by tracer": fmt.Errorf("traced: %w", code("57P03")),
	}
	for _, state := range []string{
		"08000", "08006", "08P01", "25006", "25P03", "40001", "40P01", "40003", "53000", "53100", "53200", "53300", "55P03",
		"57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030", "XX000", "XX001",
	} {
		outages[state] = code(state)
	}
	for name, cause := range outages {
		for op, send := range operations {
			t.Run(name+"/"+op, func(t *testing.T) {
				h, _ := newStub(t, sqltest.Always(nil, cause))
				err := send(t.Context(), h)
				require.True(t, loki.IsUnavailable(err), "%v", err)
				require.ErrorContains(t, err, claim.Key)
				require.ErrorContains(t, err, `"public"."loki_lockings"`)
				require.ErrorIs(t, err, cause)
			})
		}
	}
}

func TestMistakes(t *testing.T) {
	for state, says := range map[string]string{
		"28P01": "does not take this password: see the user and the password",
		"28000": "pg_hba.conf",
		"3D000": "no such database: see the data source name",
		"42P01": "run migrations.Apply",
		"3F000": "run migrations.Apply",
		"42703": "run migrations.Apply",
		"42P10": "primary key",
		"42501": "needs USAGE on the schema and SELECT, INSERT, UPDATE and DELETE",
		"22003": "no fence is left",
		"22P05": "a database in UTF8",
		"26000": "default_query_exec_mode=exec",
		"42P05": "default_query_exec_mode=exec",
		"22P02": "add client_encoding=UTF8",
		"42601": "message of 42601",
		"55000": "message of 55000",
		"P0001": "postgreshandler.Check says whether",
	} {
		cause := code(state)
		for op, send := range operations {
			t.Run(state+"/"+op, func(t *testing.T) {
				h, s := newStub(t, sqltest.Always(nil, cause))
				err := send(t.Context(), h)
				require.Error(t, err)
				require.False(t, loki.IsUnavailable(err), "%v", err)
				require.ErrorContains(t, err, says)
				require.ErrorContains(t, err, claim.Key)
				require.ErrorIs(t, err, cause)
				require.Len(t, s.Sent(), 1, "a mistake is not repeated")
			})
		}
	}
}

func TestCase061_DeadlockVictimOnAcquire(t *testing.T) {
	for _, state := range []string{"40001", "40P01", "55P03"} {
		t.Run(state, func(t *testing.T) {
			h, s := newStub(t, sqltest.First(1, code(state), granted(9)))
			g, err := h.Grant(t.Context(), claim)
			require.NoError(t, err)
			require.Equal(t, loki.Grant{Held: true, Fence: 9}, g)
			require.Len(t, s.Sent(), 2)
			require.Equal(t, s.Sent()[0], s.Sent()[1], "the same claim both times")

			h, s = newStub(t, sqltest.First(2, code(state), granted(9)))
			_, err = h.Grant(t.Context(), claim)
			require.True(t, loki.IsUnavailable(err))
			require.Len(t, s.Sent(), 2, "repeated once, not for ever")
		})
	}
}

// What a server says that was asked for a login or a table that is not right, in its own words.
func TestServerMistakes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	role := "loki_test_" + s.schema[5:13]
	s.exec(t, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { _, _ = shared.db.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	require.ErrorContains(t, s.open(t, "user="+role).anyError(t), "USAGE on the schema")
	s.exec(t, `GRANT USAGE ON SCHEMA "`+s.schema+`" TO `+role)
	require.ErrorContains(t, s.open(t, "user="+role).anyError(t), "USAGE on the schema and SELECT, INSERT")
	s.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON $T TO "+role)
	s.open(t, "user="+role).EveryOperation(t)

	require.ErrorContains(t, s.open(t, "user=loki_test_nobody").anyError(t), "28000")
	require.ErrorContains(t, s.open(t, "dbname=loki_test_nowhere").anyError(t), "no such database")

	table := postgreshandler.New(s.db, postgreshandler.WithSchema(s.schema), postgreshandler.WithTable("no_such_table"))
	schema := postgreshandler.New(s.db, postgreshandler.WithSchema("no such schema"))
	history := postgreshandler.New(s.db, append(s.opts, postgreshandler.WithHistory(time.Hour))...)
	s.exec(t, "DROP TABLE $H")
	for op, send := range operations {
		if op == "extend" || op == "inspect" {
			require.NoError(t, send(t.Context(), history), "they have nothing to do with it")
		} else {
			require.ErrorContains(t, send(t.Context(), history), "migrations.WithHistory", op)
		}
		for _, h := range []*postgreshandler.Handler{table, schema} {
			err := send(t.Context(), h)
			require.ErrorContains(t, err, "run migrations.Apply", op)
			require.False(t, loki.IsUnavailable(err), "%s: a missing table is a mistake: %v", op, err)
		}
	}
}

// anyError is what every operation fails with, as a mistake.
func (s *store) anyError(t *testing.T) (err error) {
	t.Helper()
	for op, send := range operations {
		err = send(t.Context(), s.Handler)
		require.Error(t, err, op)
		require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
	return err
}

// What a server says that cannot answer now, in its own words.
func TestServerOutages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.MustGrant(t, claim)
	role := "loki_test_" + s.schema[5:13]
	s.exec(t, "CREATE ROLE "+role+" SUPERUSER LOGIN CONNECTION LIMIT 0")
	t.Cleanup(func() { _, _ = shared.db.Exec("DROP ROLE " + role) })
	s.exec(t, "ALTER ROLE "+role+" NOSUPERUSER")
	for says, other := range map[string]*store{
		"53300": s.open(t, "user="+role),
		"25006": s.open(t, "default_transaction_read_only=on"),
	} {
		for op, send := range operations {
			if err := send(t.Context(), other.Handler); says != "25006" || op != "inspect" {
				require.True(t, loki.IsUnavailable(err), "%s: %v", op, err)
				require.ErrorContains(t, err, says)
			}
		}
	}

	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // nothing was changed
	_, err = tx.ExecContext(t.Context(), s.fill("LOCK TABLE $T IN ACCESS EXCLUSIVE MODE"))
	require.NoError(t, err)
	for says, param := range map[string]string{"55P03": "lock_timeout=50", "57014": "statement_timeout=50"} {
		_, err = s.open(t, param).Lock(t.Context(), claim)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	for op, send := range operations {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h, s := newStub(t, sqltest.Always(granted(1), nil))
		require.ErrorIs(t, send(ctx, h), context.Canceled, op)
		require.Empty(t, s.Sent())
	}
}
