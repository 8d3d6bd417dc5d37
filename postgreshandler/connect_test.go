package postgreshandler_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

func openDSN(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// everyError is what each operation, Notify, Check and Apply fail with.
func everyError(t *testing.T, db *sql.DB, opts ...postgreshandler.Option) map[string]error {
	t.Helper()
	h := postgreshandler.New(db, opts...)
	errs := make(map[string]error)
	for op, send := range operations {
		errs[op] = send(t.Context(), h)
	}
	_, errs["notify"] = h.Notify(t.Context(), claim.Key)
	errs["Check"] = postgreshandler.Check(t.Context(), db, opts...)
	errs["Apply"] = migrations.Apply(t.Context(), db)
	return errs
}

// A database that the application opened reads the data source name at the first call.
func TestADataSourceNameThatCannotBeUsedIsNoOutage(t *testing.T) {
	t.Parallel()
	for params, says := range map[string]string{
		"sslmode=verify-full&sslrootcert=/no/such.crt":       "open /no/such.crt: no such file or directory",
		"sslmode=verify-full&sslrootcert=" + file(t, "none"): "the file of sslrootcert has no certificate in it",
		"sslmode=require&sslcert=/no/such.crt":               "sslcert and sslkey go together",
		"sslmode=nope":                                       "sslmode is not disable",
		"service=none&servicefile=/no/such.conf":             "see PGSERVICEFILE",
	} {
		for op, err := range everyError(t, openDSN(t, "postgres://app:secret@127.0.0.1:1/app?"+params)) {
			require.ErrorContains(t, err, says, op)
			require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
			require.NotContains(t, err.Error(), "secret")
		}
	}
}

// With sslmode=prefer, the default, pgx tries without TLS what it could not have with it.
func TestTheReasonIsThatOfTheAttemptWhichGotFurthest(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for op, err := range everyError(t, s.server.Open(t, "sslmode=prefer", "dbname=loki_test_nowhere")) {
		require.ErrorContains(t, err, "the server has no such database", op)
		require.ErrorContains(t, err, "(SQLSTATE 3D000)", op)
		require.NotContains(t, err.Error(), "server refused TLS", op)
		require.NotContains(t, err.Error(), "\n", op)
		require.NotContains(t, err.Error(), "\t", op)
	}
	for op, err := range everyError(t, s.server.Open(t, "sslmode=prefer", "host=127.0.0.1,127.0.0.1", "port=1,2")) {
		require.ErrorContains(t, err, "connection refused", op)
		require.NotContains(t, err.Error(), "\n", op)
		require.True(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
	// One of two servers refuses the login, the other is down: what is permanent is not marked by the other's silence.
	for op, err := range everyError(t, s.server.Open(t, "user=loki_test_nobody", "host=127.0.0.1,127.0.0.1", fmt.Sprintf("port=1,%d", s.server.Port()))) {
		require.ErrorContains(t, err, "does not let this login in", op)
		require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
}

func TestCheckOfAServerThatIsSilentWithoutTLSIsAnOutage(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			go func() {
				r := bufio.NewReader(conn)
				if first, err := r.Peek(8); err == nil && string(first[4:8]) == "\x04\xd2\x16\x2f" { // it asks for TLS
					_, _ = conn.Write([]byte("N"))
				}
			}()
		}
	}()
	db := openDSN(t, "postgres://app:secret@"+l.Addr().String()+"/app")
	err = postgreshandler.Check(within(t, 500*time.Millisecond), db)
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "timeout")
	require.NotContains(t, err.Error(), "refused TLS")
	require.NotContains(t, err.Error(), "offer TLS")
	require.NotContains(t, err.Error(), "\n")
	_, err = postgreshandler.New(db).Lock(within(t, 500*time.Millisecond), claim)
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.NotContains(t, err.Error(), "refused TLS")
	require.NotContains(t, err.Error(), "offer TLS")
}

// A service gives Check the context that it runs with.
func TestCheckEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(silent{})
		defer db.Close()
		begun := time.Now()
		err := postgreshandler.Check(t.Context(), db)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.Equal(t, 10*time.Second, time.Since(begun))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		require.True(t, loki.IsUnavailable(postgreshandler.Check(ctx, db)))
		require.Equal(t, time.Second, time.Since(begun))
	})
}

func TestWithoutCONNECTTheErrorSaysWhatToGrant(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := "loki_test_" + s.schema[5:13]
	s.exec(t, "CREATE ROLE "+name+" LOGIN")
	s.exec(t, "CREATE DATABASE "+name)
	t.Cleanup(func() { _, _ = shared.db.Exec("DROP DATABASE " + name); _, _ = shared.db.Exec("DROP ROLE " + name) })
	s.exec(t, "REVOKE CONNECT ON DATABASE "+name+" FROM PUBLIC")
	for op, err := range everyError(t, s.server.Open(t, "user="+name, "dbname="+name)) {
		require.ErrorContains(t, err, `run GRANT CONNECT ON DATABASE "`+name+`" TO "`+name+`"`, op)
		require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
		require.NotContains(t, err.Error(), "Check says", op)
	}
}
