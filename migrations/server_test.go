package migrations_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// server is a database, and the name of a table in it that nobody else has.
type server struct {
	*sql.DB
	mssqlname.Table
}

func newServer(t *testing.T) *server {
	t.Helper()
	dsn := os.Getenv("LOKI_TEST_MSSQL_DSN")
	if dsn == "" {
		t.Skip("LOKI_TEST_MSSQL_DSN is not set: no T-SQL server to test against")
	}
	db, err := sql.Open("sqlserver", dsn)
	require.NoError(t, err)
	s := &server{db, mssqlname.Table{Schema: "dbo", Name: "loki_test_" + strings.ToLower(rand.Text())}}
	t.Cleanup(func() {
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), s.Fill("DROP TABLE IF EXISTS [dbo].[LokiLockings]"))
		require.NoError(t, err)
		require.NoError(t, db.Close())
	})
	return s
}

func (s *server) apply(ctx context.Context) error {
	return migrations.Apply(ctx, s.DB, migrations.WithSchema(s.Schema), migrations.WithTable(s.Name))
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

// keys are those in the table, in order.
func (s *server) keys(t *testing.T) (keys []string) {
	t.Helper()
	rows, err := s.QueryContext(t.Context(), s.Fill("SELECT ServiceKey FROM [dbo].[LokiLockings] ORDER BY ServiceKey COLLATE Latin1_General_BIN2"))
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var key string
		require.NoError(t, rows.Scan(&key))
		keys = append(keys, key)
	}
	require.NoError(t, rows.Err())
	return keys
}

// requireWorking takes and gives back a lock.
func (s *server) requireWorking(t *testing.T) {
	t.Helper()
	h := mssqlhandler.New(sqlx.NewDb(s.DB, "sqlserver"), mssqlhandler.WithSchema(s.Schema), mssqlhandler.WithTable(s.Name))
	c := loki.Claim{Key: "at work", Token: rand.Text(), Expiry: time.Minute, Holder: "test"}
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(t.Context(), c))
}

func TestServerTakesOverTheTableOfLokiNet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.exec(t, lokinet)
	s.exec(t, `INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate) VALUES ('Orders', '2024-02-29T23:59:59.997'), ('straße', '2020-01-01'), ('other', '2020-01-01')`)
	require.NoError(t, s.apply(t.Context()))
	require.Equal(t, []string{"Orders", "other", "straße"}, s.keys(t))
	var date time.Time
	require.NoError(t, s.QueryRowContext(t.Context(), s.Fill("SELECT CreationDate FROM [dbo].[LokiLockings] WHERE ServiceKey = 'Orders'")).Scan(&date))
	require.Equal(t, time.Date(2024, 2, 29, 23, 59, 59, 997_000_000, time.UTC), date)
	s.requireWorking(t)

	// What LokiNet sends goes on working, and case now tells keys apart.
	s.exec(t, `INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate) VALUES ('orders', GETDATE())`)
	s.exec(t, `DELETE FROM [dbo].[LokiLockings] WHERE ServiceKey = 'Orders'`)
	require.Equal(t, []string{"orders", "other", "straße"}, s.keys(t))

	require.NoError(t, s.apply(t.Context()), "again")
	require.Len(t, s.keys(t), 3)
}

// A run that was cut off between any two statements is finished by the next.
func TestServerFinishesWhatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.run(t, "000001", "up"))
	s.exec(t, `INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate) VALUES ('k', GETDATE())`)
	require.NoError(t, s.apply(t.Context()))
	for _, column := range []string{"Fence", "ExpiresAt", "Holder", "Token"} {
		s.exec(t, "ALTER TABLE [dbo].[LokiLockings] DROP COLUMN "+column)
		require.NoError(t, s.apply(t.Context()), column)
		s.exec(t, "ALTER TABLE [dbo].[LokiLockings] DROP COLUMN "+column)
	}
	require.NoError(t, s.apply(t.Context()), "all of them")
	require.Equal(t, []string{"k"}, s.keys(t))
	s.requireWorking(t)
}

// Several instances start at once, on nothing and on a table of LokiNet's.
func TestServerAppliedByManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	atOnce := func() {
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				<-start
				if err := s.apply(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		s.requireWorking(t)
	}
	atOnce()
	s.exec(t, "DROP TABLE [dbo].[LokiLockings]")
	s.exec(t, lokinet)
	s.exec(t, `INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate) VALUES ('a', GETDATE()), ('b', GETDATE())`)
	atOnce()
	require.Equal(t, []string{"a", "b"}, s.keys(t))
}

func TestServerNastyNames(t *testing.T) {
	t.Parallel()
	for what, names := range map[string]mssqlname.Table{
		"anywhere":      {Schema: `it's a "schema";--`, Name: `the locks; -- ☃ $1 ?`},
		"on SQL Server": {Schema: `it's [a] schema`, Name: `Lo]ki's "locks"`},
	} {
		t.Run(what, func(t *testing.T) {
			s := newServer(t)
			if _, err := s.ExecContext(t.Context(), "SELECT 1 AS [a]]b]"); err != nil && strings.Contains(names.Name, "]") {
				t.Skip("this server has no names with a bracket in them: ", err)
			}
			s.Schema, s.Name = names.Schema+rand.Text()[:4], names.Name+rand.Text()[:4]
			schema := strings.TrimSuffix(s.Quoted(), mssqlname.Table{Name: s.Name}.Quoted()[len("[]"):])
			s.exec(t, "CREATE SCHEMA "+schema)
			t.Cleanup(func() {
				for _, drop := range []string{"DROP TABLE " + s.Quoted(), "DROP SCHEMA " + schema} {
					_, err := s.ExecContext(context.WithoutCancel(t.Context()), drop)
					require.NoError(t, err)
				}
			})
			require.NoError(t, s.apply(t.Context()))
			require.NoError(t, s.apply(t.Context()))
			s.requireWorking(t)
			require.NoError(t, s.run(t, "000002", "down"))
			require.NoError(t, s.apply(t.Context()))
			s.requireWorking(t)
		})
	}
}

func TestServerTableOfSomebodyElseIsNotTouched(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.exec(t, "CREATE TABLE [dbo].[LokiLockings] (ServiceKey varchar(50) NOT NULL PRIMARY KEY, CreationDate datetime NOT NULL, Note varchar(9) NULL)")
	s.exec(t, "INSERT INTO [dbo].[LokiLockings] VALUES ('k', GETDATE(), 'a note')")
	require.ErrorContains(t, s.apply(t.Context()), "would lose what is in them")
	var note string
	require.NoError(t, s.QueryRowContext(t.Context(), s.Fill("SELECT Note FROM [dbo].[LokiLockings]")).Scan(&note))
	require.Equal(t, "a note", note)
	_, err := s.ExecContext(t.Context(), s.Fill("INSERT INTO [dbo].[LokiLockings] VALUES ('k', GETDATE(), 'a twin')"))
	require.Error(t, err, "it still has its primary key")
}

func TestServerDownRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.apply(t.Context()))
	row := func(values string) {
		t.Helper()
		s.exec(t, "INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate, Token, ExpiresAt) VALUES "+values)
	}
	row("(N'kept', GETDATE(), NULL, NULL)")
	for _, misfit := range []struct{ says, values string }{
		{"claims are held", "(N'x', GETDATE(), N't', DATEADD(hour, 1, SYSUTCDATETIME()))"},
		{"longer than 50", "(N'" + strings.Repeat("x", 51) + "', GETDATE(), NULL, NULL)"},
		{"two keys differ", "(N'KEPT', GETDATE(), NULL, NULL)"},
	} {
		row(misfit.values)
		require.ErrorContains(t, s.run(t, "000002", "down"), misfit.says)
		require.Len(t, s.keys(t), 2, "nothing is lost")
		s.requireWorking(t)
		s.exec(t, "DELETE FROM [dbo].[LokiLockings] WHERE ServiceKey <> N'kept'")
	}

	row("(N'over', GETDATE(), N't', SYSUTCDATETIME())")
	require.NoError(t, s.run(t, "000002", "down"))
	require.NoError(t, s.run(t, "000002", "down"), "again")
	require.Equal(t, []string{"kept"}, s.keys(t), "what has expired is gone, what LokiNet holds is not")
	_, err := s.ExecContext(t.Context(), s.Fill("INSERT INTO [dbo].[LokiLockings] VALUES ('kept', GETDATE())"))
	require.Error(t, err, "it is LokiNet's table again, with its primary key")

	require.ErrorContains(t, s.run(t, "000001", "down"), "it has rows")
	s.exec(t, "DELETE FROM [dbo].[LokiLockings]")
	require.NoError(t, s.run(t, "000001", "down"))
	require.NoError(t, s.run(t, "000001", "down"), "again")
	require.NoError(t, s.apply(t.Context()), "and from the beginning")
	s.requireWorking(t)
}

// A key that varchar would turn into question marks stays, where varchar cannot hold it.
func TestServerDownRefusesOtherAlphabets(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var kept string
	require.NoError(t, s.QueryRowContext(t.Context(), "SELECT CONVERT(nvarchar(9), CONVERT(varchar(9), N'дом'))").Scan(&kept))
	if kept == "дом" {
		t.Skip("varchar holds every character on this server: there is nothing to refuse")
	}
	require.NoError(t, s.apply(t.Context()))
	s.exec(t, "INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate) VALUES (N'дом', GETDATE())")
	require.ErrorContains(t, s.run(t, "000002", "down"), "characters that varchar does not have")
	require.Equal(t, []string{"дом"}, s.keys(t))
}
