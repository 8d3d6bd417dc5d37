package postgreshandler_test

// This file is about the look at the tables before the first claim.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

func TestCheckRefusesWhatNewRefuses(t *testing.T) {
	require.ErrorContains(t, postgreshandler.Check(t.Context(), nil), "database is nil")
	require.ErrorContains(t, postgreshandler.Check(t.Context(), nil, postgreshandler.WithTable("")), "table is empty")
}

func TestCheckTellsAnOutageFromAFault(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	err := postgreshandler.Check(t.Context(), s.server.Open(t, "port=1"))
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, `looking at "public"."loki_lockings"`)
	err = postgreshandler.Check(t.Context(), s.server.Open(t, "dbname=loki_test_nowhere"))
	require.ErrorContains(t, err, "no such database")
	require.False(t, loki.IsUnavailable(err))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = postgreshandler.Check(ctx, s.db)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, loki.IsUnavailable(err))
}

func TestCheckSaysWhatToRun(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	withHistory := append(s.opts, postgreshandler.WithHistory(time.Hour))
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, withHistory...))

	role := "Loki Test " + s.schema[5:13]
	s.exec(t, `CREATE ROLE "`+role+`" LOGIN`)
	t.Cleanup(func() { _, _ = shared.db.Exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`) })
	login := s.open(t, "user='"+role+"'").db
	require.ErrorContains(t, postgreshandler.Check(t.Context(), login, withHistory...), "USAGE on the schema")
	s.exec(t, `GRANT USAGE ON SCHEMA "`+s.schema+`" TO "`+role+`"`)
	s.exec(t, `GRANT SELECT, DELETE ON $T TO "`+role+`"`)
	err := postgreshandler.Check(t.Context(), login, withHistory...)
	require.ErrorContains(t, err, s.fill(`run GRANT INSERT, UPDATE ON $T TO "`+role+`"`))
	require.ErrorContains(t, err, s.fill(`run GRANT SELECT, INSERT, UPDATE, DELETE ON $H TO "`+role+`"`), "every fault at once")
	s.exec(t, s.fill(`GRANT INSERT, UPDATE ON $T TO "`+role+`"`))
	require.NoError(t, postgreshandler.Check(t.Context(), login, s.opts...))

	s.exec(t, "DROP TABLE $H")
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...))
	require.ErrorContains(t, postgreshandler.Check(t.Context(), s.db, withHistory...), "run migrations.Apply with migrations.WithHistory")
	s.exec(t, "ALTER TABLE $T DROP COLUMN fence, ALTER COLUMN holder DROP NOT NULL")
	err = postgreshandler.Check(t.Context(), s.db, s.opts...)
	require.ErrorContains(t, err, "the column fence is missing")
	require.ErrorContains(t, err, "the column holder may be NULL")
}
