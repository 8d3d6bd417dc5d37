package migrations_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io/fs"
	"log"
	"slices"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/migrations"
)

func TestFilesAreNumberedInPairs(t *testing.T) {
	names, err := fs.Glob(migrations.Files, "*")
	require.NoError(t, err)
	require.Equal(t, []string{
		"000001_lokinet_table.down.sql", "000001_lokinet_table.up.sql",
		"000002_exact_keys_and_claims.down.sql", "000002_exact_keys_and_claims.up.sql",
		"000003_history.down.sql", "000003_history.up.sql",
	}, names)
	for _, name := range names {
		text, err := fs.ReadFile(migrations.Files, name)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "-- "+name[:6]), "%s begins by saying what it does", name)
		require.NotRegexp(t, `(?im)^\s*GO\s*$`, string(text), "%s is one batch", name)
	}
}

// lokinet is the statement in LokiNet's own documentation.
const lokinet = `CREATE TABLE [dbo].[LokiLockings](
	[ServiceKey] [varchar](50) NOT NULL,
	[CreationDate] [datetime] NOT NULL,
 CONSTRAINT [PK_LokiLockings] PRIMARY KEY CLUSTERED 
(
	[ServiceKey] ASC
))`

func TestFirstMigrationIsLokiNetsTable(t *testing.T) {
	text, err := migrations.Files.ReadFile("000001_lokinet_table.up.sql")
	require.NoError(t, err)
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), "") }
	require.Contains(t, squeeze(string(text)), squeeze(lokinet))
}

func TestScriptNamesTheChosenTable(t *testing.T) {
	script, err := migrations.Script()
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(script, "\nGO\n"))
	require.Contains(t, script, "CREATE TABLE [dbo].[LokiLockings](")
	require.Less(t, strings.Index(script, "-- 000001"), strings.Index(script, "-- 000002"))
	require.NotContains(t, script, "History", "one table, unless asked for another")

	script, err = migrations.Script(migrations.WithHistory(), migrations.WithTable("locks"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(script, "\nGO\n"))
	require.Contains(t, script, "CREATE TABLE [dbo].[locksHistory](")
	require.Contains(t, script, "CONSTRAINT [PK_locksHistory]")

	script, err = migrations.Script(migrations.WithSchema("it's"), migrations.WithTable("a]b"))
	require.NoError(t, err)
	require.Contains(t, script, "CREATE TABLE [it's].[a]]b](")
	require.Contains(t, script, "OBJECT_ID(N'[it''s].[a]]b]', N'U')")
	require.Contains(t, script, "CONSTRAINT [PK_a]]b]")
	require.NotContains(t, script, "LokiLockings")
	require.NotContains(t, script, "[dbo]")
}

func TestChoicesThatCannotWork(t *testing.T) {
	for says, opts := range map[string][]migrations.Option{
		"table is empty":    {migrations.WithTable("")},
		"schema is empty":   {migrations.WithSchema("")},
		"at most 118":       {migrations.WithTable(strings.Repeat("t", 119))},
		"control character": {migrations.WithSchema("a\x00")},
		"option 1 is nil":   {nil},
	} {
		_, err := migrations.Script(opts...)
		require.ErrorContains(t, err, says)
		s := &stub{}
		require.ErrorContains(t, migrations.Apply(t.Context(), open(t, s), opts...), says)
		require.Zero(t, s.looked)
	}
	err := migrations.Apply(t.Context(), nil, migrations.WithTable(""))
	require.ErrorContains(t, err, "database is nil")
	require.ErrorContains(t, err, "table is empty", "every mistake at once")
}

func TestTableThatIsFitIsLeftAlone(t *testing.T) {
	s := &stub{table: fit}
	require.NoError(t, migrations.Apply(t.Context(), open(t, s)))
	require.Empty(t, s.ran)
}

func TestTableIsMadeInOrder(t *testing.T) {
	s := &stub{table: missing}
	s.exec = func(statement string) error {
		if strings.Contains(statement, "000002") {
			s.table = fit
		}
		return nil
	}
	require.NoError(t, migrations.Apply(t.Context(), open(t, s)))
	require.Len(t, s.ran, 2)
	require.Contains(t, s.ran[0], "000001")
	require.Equal(t, 2, s.looked)
}

func TestHistoryIsMadeOnRequest(t *testing.T) {
	s := &stub{table: fit, history: missing}
	s.exec = func(statement string) error {
		if strings.Contains(statement, "000003") {
			s.table, s.history = slices.Concat(fit, kept), fitHistory
		}
		return nil
	}
	require.NoError(t, migrations.Apply(t.Context(), open(t, s)))
	require.Empty(t, s.ran, "nobody asked for one")
	require.NoError(t, migrations.Apply(t.Context(), open(t, s), migrations.WithHistory()))
	require.Len(t, s.ran, 3)
	s.exec = nil
	s.table = fit
	require.ErrorContains(t, migrations.Apply(t.Context(), open(t, s), migrations.WithHistory()), "[dbo].[LokiLockings]: the column RunEndedAt is not there (migration 000003)")
	s.table = slices.Concat(fit, kept)
	s.history[0] = append(slices.Clone(s.history[0][:5]), int64(0))
	require.ErrorContains(t, migrations.Apply(t.Context(), open(t, s), migrations.WithHistory()), "[dbo].[LokiLockingsHistory]: the column ServiceKey has no index")
}

// Another instance was quicker: whatever the server says then, the table is what counts.
func TestLostRaceIsAnsweredByLookingAgain(t *testing.T) {
	for _, n := range []int32{2714, 1913, 2705, 1779, 3728, 1205, 33557097} {
		s := &stub{table: missing}
		s.exec = func(string) error {
			s.table = fit
			return number(n)
		}
		require.NoError(t, migrations.Apply(t.Context(), open(t, s)), n)
		require.Len(t, s.ran, 1)
		require.Equal(t, 1, s.closed, "the connection may have a transaction open, it is not used again")

		s = &stub{table: missing}
		s.exec = func(string) error { return number(n) }
		err := migrations.Apply(t.Context(), open(t, s))
		require.ErrorContains(t, err, "as the server says it")
		require.ErrorContains(t, err, "if this login may not change it", "not every server has a number for that")
		require.ErrorContains(t, err, "run what migrations.Script returns")
		require.Len(t, s.ran, 5, "not for ever")
	}
}

func TestLoginWithoutTheRights(t *testing.T) {
	for _, n := range []int32{229, 262, 1088, 2760, 4902} {
		s := &stub{table: missing, exec: func(string) error { return number(n) }}
		err := migrations.Apply(t.Context(), open(t, s), migrations.WithTable("locks"))
		require.ErrorContains(t, err, "[dbo].[locks]")
		require.ErrorContains(t, err, "run what migrations.Script returns")
		var e mssql.Error
		require.ErrorAs(t, err, &e)
		require.Len(t, s.ran, 1, "asking again does not help")
	}
}

func TestTableOfSomebodyElse(t *testing.T) {
	for says, change := range map[string]func([][]driver.Value) [][]driver.Value{
		"ServiceKey is not there":           func(r [][]driver.Value) [][]driver.Value { return r[1:] },
		"Fence is not there":                func(r [][]driver.Value) [][]driver.Value { return r[:5] },
		"Fence is a int, not a bigint":      func(r [][]driver.Value) [][]driver.Value { r[5][1] = "int"; return r },
		"ServiceKey is too short":           func(r [][]driver.Value) [][]driver.Value { r[0][2] = int64(100); return r },
		"Holder is too short":               func(r [][]driver.Value) [][]driver.Value { r[3][2] = int64(100); return r },
		"collation Latin1_General_CI_AS":    func(r [][]driver.Value) [][]driver.Value { r[0][3] = "Latin1_General_CI_AS"; return r },
		"ServiceKey is not the primary key": func(r [][]driver.Value) [][]driver.Value { r[0][4] = int64(0); return r },
		"there is no such table":            func([][]driver.Value) [][]driver.Value { return missing },
	} {
		t.Run(says, func(t *testing.T) {
			table := slices.Clone(fit)
			for i, row := range table {
				table[i] = slices.Clone(row)
			}
			s := &stub{table: change(table), exec: func(string) error { return nil }}
			err := migrations.Apply(t.Context(), open(t, s))
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "WithTable")
			require.Len(t, s.ran, 2, "they had their chance")
		})
	}
}

func TestApplyOnABrokenOrEndedCall(t *testing.T) {
	gone := errors.New("the server is gone")
	s := &stub{table: missing, exec: func(string) error { return gone }}
	err := migrations.Apply(t.Context(), open(t, s))
	require.ErrorIs(t, err, gone)
	require.NotContains(t, err.Error(), "login", "nobody's rights have to do with it")
	require.Len(t, s.ran, 1)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, migrations.Apply(ctx, open(t, s)), context.Canceled)
}

func ExampleApply() {
	db, err := sql.Open("sqlserver", "sqlserver://deploy:secret@localhost?database=jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Apply(context.Background(), db, migrations.WithSchema("locks")); err != nil {
		log.Fatal(err)
	}
}
