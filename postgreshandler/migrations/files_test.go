package migrations_test

import (
	"context"
	"database/sql"
	"io/fs"
	"log"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler/migrations"
)

func TestFilesAreNumberedInPairs(t *testing.T) {
	names, err := fs.Glob(migrations.Files, "*")
	require.NoError(t, err)
	require.Equal(t, []string{
		"000001_lockings.down.sql", "000001_lockings.up.sql", "000002_history.down.sql", "000002_history.up.sql",
	}, names)
	for _, name := range names {
		text, err := fs.ReadFile(migrations.Files, name)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "-- "+name[:6]), "%s begins by saying what it does", name)
	}
}

func TestScriptNamesTheChosenTable(t *testing.T) {
	script, err := migrations.Script()
	require.NoError(t, err)
	require.Contains(t, script, `CREATE TABLE IF NOT EXISTS "public"."loki_lockings" (`)
	require.NotContains(t, script, "_history")
	require.True(t, strings.HasPrefix(script, "BEGIN;\n"))
	require.True(t, strings.HasSuffix(script, "COMMIT;\n"))

	script, err = migrations.Script(migrations.WithSchema("it's"), migrations.WithTable(`a"b`), migrations.WithHistory())
	require.NoError(t, err)
	require.Contains(t, script, `"it's"."a""b" (`)
	require.Contains(t, script, `"it's"."a""b_history" (`)
	require.Contains(t, script, `"a""b_history_ended" ON`)
	require.Less(t, strings.Index(script, "-- 000001"), strings.Index(script, "-- 000002"))
	require.NotContains(t, script, "loki_lockings")
}

func TestChoicesThatCannotWork(t *testing.T) {
	for says, opts := range map[string][]migrations.Option{
		"table is empty":    {migrations.WithTable("")},
		"schema is empty":   {migrations.WithSchema("")},
		"at most 49":        {migrations.WithTable(strings.Repeat("t", 50))},
		"control character": {migrations.WithSchema("a\x00")},
		"option 1 is nil":   {nil},
	} {
		_, err := migrations.Script(opts...)
		require.ErrorContains(t, err, says)
		err = migrations.Apply(t.Context(), nil, opts...)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "database is nil", "every mistake at once")
	}
}

func ExampleApply() {
	db, err := sql.Open("pgx", "postgres://deploy:secret@localhost/jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Apply(context.Background(), db, migrations.WithSchema("locks")); err != nil {
		log.Fatal(err)
	}
}
