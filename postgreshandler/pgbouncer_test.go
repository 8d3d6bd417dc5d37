package postgreshandler_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
)

// pgx prepares statements by default, under names that it makes of their text, and another client of the same server's
// connection has them already.
//
// https://github.com/goauthentik/authentik/issues/23876
func TestStatementsBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	pooler := postgrestest.StartPooler(t, s.server, nil)
	for _, dsn := range []string{pooler.DSN(), pooler.DSN("default_query_exec_mode=exec")} {
		db := openDB(t, "pgx", dsn)
		t.Cleanup(func() { _ = db.Close() })
		db.SetMaxIdleConns(8)
		through := s.on(db)
		require.NoError(t, postgreshandler.Check(t.Context(), db, s.opts...))
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				for j := range 15 {
					c := s.Claim(fmt.Sprint(i, j))
					_, err := through.Grant(t.Context(), c)
					_, extendErr := through.Extend(t.Context(), c)
					if err := errors.Join(err, extendErr, through.Release(t.Context(), c)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		calls.Wait()
		through.EveryOperation(t)
		_, err := through.History(t.Context(), "every operation", 3)
		require.NoError(t, err)
		require.NoError(t, postgreshandler.Check(t.Context(), db, s.opts...))
		_, err = through.Notify(t.Context(), "job")
		require.ErrorIs(t, err, errors.ErrUnsupported, "it would never be told of anything")
	}

	register()
	wrapped := openDB(t, "traced-pgx", pooler.DSN())
	t.Cleanup(func() { _ = wrapped.Close() })
	err := postgreshandler.Check(t.Context(), wrapped, s.opts...)
	require.ErrorContains(t, err, "add default_query_exec_mode=exec")
	require.False(t, loki.IsUnavailable(err))
}

// A data source name for listening that leads to a pooler, or elsewhere, is found out.
func TestListeningWhereNothingComes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	pooler := postgrestest.StartPooler(t, s.server, nil)
	for _, dsn := range []string{pooler.DSN(), s.server.DSN("dbname=template1")} {
		deaf := postgreshandler.New(s.db, append(s.opts, postgreshandler.WithListenDSN(dsn))...)
		_, err := deaf.Notify(t.Context(), "job")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "passes nothing on")
	}
}

// PgBouncer has one code for everything, in which refusals must not pass for outages, nor outages for refusals.
func TestRefusalsOfAPooler(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	s := newStoreOn(t, server)
	server.Exec(t, "CREATE ROLE secret LOGIN PASSWORD 'right'")
	server.WriteFile(t, "pg_hba.conf", "host all postgres 127.0.0.1/32 trust\nhost all missing 127.0.0.1/32 trust\nhost all secret 127.0.0.1/32 scram-sha-256\n")
	server.Restart(t)
	pooler := postgrestest.StartPooler(t, server, []string{"secret", "refused", "missing"}, "query_wait_timeout=1", "max_client_conn=20", "server_login_retry=1")
	lock := func(params ...string) error {
		db, err := sql.Open("pgx", pooler.DSN(params...))
		require.NoError(t, err)
		defer db.Close()
		_, err = s.on(db).Lock(within(t, 20*time.Second), s.Claim("k"))
		return err
	}
	for says, param := range map[string]string{
		"[databases] in the pooler's configuration: failed":       "dbname=unlisted",
		"the server has no such database or role":                 "dbname=nowhere",
		"in the pooler's auth_file":                               "user=stranger",
		"no such database or role: see the data source":           "user=missing",
		"see the server's pg_hba.conf":                            "user=refused",
		"see the user and the password":                           "user=secret",
		"does not offer TLS":                                      "sslmode=require",
		"ignore_startup_parameters in the pooler's configuration": "search_path=public",
	} {
		err := lock(param)
		require.ErrorContains(t, err, says)
		require.False(t, loki.IsUnavailable(err), "%v", err)
	}
	require.NoError(t, lock())
	err := lock("dbname=down")
	require.True(t, loki.IsUnavailable(err), "%v", err)

	db := openDB(t, "pgx", pooler.DSN())
	t.Cleanup(func() { _ = db.Close() })
	for range 2 {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "SELECT 1")
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
	}
	err = lock()
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "query_wait_timeout")
	for err == nil || db.Stats().OpenConnections < 25 {
		if _, err = db.Conn(context.Background()); err != nil { // they stay until the database is closed
			break
		}
	}
	err = lock()
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "max_client_conn")
}
