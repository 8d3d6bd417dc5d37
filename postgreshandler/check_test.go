package postgreshandler_test

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
	require.ErrorContains(t, postgreshandler.Check(t.Context(), login, withHistory...), `run GRANT USAGE ON SCHEMA "`+s.schema+`" TO "`+role+`"`)
	s.exec(t, `GRANT USAGE ON SCHEMA "`+s.schema+`" TO "`+role+`"`)
	s.exec(t, `GRANT SELECT, DELETE ON $T TO "`+role+`"`)
	err := postgreshandler.Check(t.Context(), login, withHistory...)
	require.ErrorContains(t, err, s.fill(`run GRANT INSERT, UPDATE ON $T TO "`+role+`"`))
	require.ErrorContains(t, err, s.fill(`run GRANT SELECT, INSERT, UPDATE, DELETE ON $H TO "`+role+`"`), "every fault at once")
	s.exec(t, s.fill(`GRANT INSERT, UPDATE ON $T TO "`+role+`"`))
	require.NoError(t, postgreshandler.Check(t.Context(), login, s.opts...))
	s.exec(t, "ALTER TABLE $T ENABLE ROW LEVEL SECURITY")
	require.ErrorContains(t, postgreshandler.Check(t.Context(), login, s.opts...), "row security (policies)")
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...), "it is not for this one")
	s.exec(t, "ALTER TABLE $T DISABLE ROW LEVEL SECURITY")

	s.exec(t, "ALTER TABLE $T DROP COLUMN ended_at, ALTER COLUMN outcome TYPE int USING NULL")
	err = postgreshandler.Check(t.Context(), s.db, withHistory...)
	require.ErrorContains(t, err, "the column ended_at is missing")
	require.ErrorContains(t, err, "the column outcome is of type integer")
	require.ErrorContains(t, err, "run migrations.Apply with migrations.WithHistory")
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...), "they are for a history")

	s.exec(t, "DROP TABLE $H")
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...))
	require.ErrorContains(t, postgreshandler.Check(t.Context(), s.db, withHistory...), "run migrations.Apply with migrations.WithHistory")
	s.exec(t, "ALTER TABLE $T DROP COLUMN fence, ALTER COLUMN holder DROP NOT NULL")
	err = postgreshandler.Check(t.Context(), s.db, s.opts...)
	require.ErrorContains(t, err, "the column fence is missing")
	require.ErrorContains(t, err, "the column holder may be NULL")
}

// What a table can have on which statements fail, or do something else than they say.
func TestCheckTellsWhatGetsInTheWay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	history := append(s.opts, postgreshandler.WithHistory(time.Hour))
	s.exec(t, `CREATE FUNCTION "`+s.schema+`".nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	trigger := func(name, when, each string) string {
		return "CREATE TRIGGER " + name + " " + when + " DELETE ON $T FOR EACH " + each + ` EXECUTE FUNCTION "` + s.schema + `".nothing()`
	}
	s.exec(t, trigger("audit", "AFTER", "ROW"))
	s.exec(t, trigger("audit_all", "BEFORE", "STATEMENT"))
	s.exec(t, "ALTER TABLE $T ADD COLUMN made timestamptz NOT NULL DEFAULT now(), ADD COLUMN number bigint NOT NULL GENERATED ALWAYS AS IDENTITY, ADD COLUMN note text")
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, history...), "these do no harm")
	s.EveryOperation(t)

	partition := `ALTER TABLE "` + s.schema + `"."parent" ATTACH PARTITION $T FOR VALUES WITH (MODULUS 1, REMAINDER 0)`
	for says, change := range map[string][2]string{
		`$T has what can change what is written to it, or keep it from being written: rules:`: {"CREATE RULE r AS ON DELETE TO $T DO INSTEAD NOTHING", "DROP RULE r ON $T"},
		"triggers before each row (stop)":         {trigger("stop", "BEFORE", "ROW"), "DROP TRIGGER stop ON $T"},
		"a primary key that is DEFERRABLE":        {"ALTER TABLE $T DROP CONSTRAINT loki_lockings_pkey, ADD PRIMARY KEY (service_key) DEFERRABLE", "ALTER TABLE $T DROP CONSTRAINT loki_lockings_pkey, ADD PRIMARY KEY (service_key)"},
		"in $T the column x is no handler's":      {"ALTER TABLE $T ADD COLUMN x int NOT NULL", "ALTER TABLE $T DROP COLUMN x"},
		"in $H the column x is no handler's":      {"ALTER TABLE $H ADD COLUMN x int NOT NULL", "ALTER TABLE $H DROP COLUMN x"},
		"expires_at is of type timestamp(0) with": {"ALTER TABLE $T ALTER expires_at TYPE timestamptz(0)", "ALTER TABLE $T ALTER expires_at TYPE timestamptz"},
		"granted_at is of type timestamp(3) with": {"ALTER TABLE $H ALTER granted_at TYPE timestamptz(3)", "ALTER TABLE $H ALTER granted_at TYPE timestamptz"},
		"partition of another table":              {`CREATE TABLE "` + s.schema + `"."parent" (LIKE $T) PARTITION BY HASH (service_key); ALTER TABLE $T ALTER number DROP IDENTITY; ` + partition, `ALTER TABLE "` + s.schema + `"."parent" DETACH PARTITION $T; DROP TABLE "` + s.schema + `"."parent"; ALTER TABLE $T ALTER number DROP NOT NULL`},
	} {
		s.exec(t, change[0])
		require.ErrorContains(t, postgreshandler.Check(t.Context(), s.db, history...), s.fill(says))
		s.exec(t, change[1])
		require.NoError(t, postgreshandler.Check(t.Context(), s.db, history...), "after %s", change[1])
	}
}
