package mssqlhandler_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestCheckRefusesWhatNewRefuses(t *testing.T) {
	_, s, db := newStub(t, sqltest.Always(nil, nil))
	require.ErrorContains(t, mssqlhandler.Check(t.Context(), nil), "database is nil")
	require.ErrorContains(t, mssqlhandler.Check(t.Context(), db, mssqlhandler.WithTable("")), "table is empty")
	require.Empty(t, s.Sent())
}

func TestCheckTellsAnOutageFromAFault(t *testing.T) {
	_, s, db := newStub(t, sqltest.Always(nil, number(40613)))
	err := mssqlhandler.Check(t.Context(), db)
	require.ErrorContains(t, err, "looking at [dbo].[LokiLockings]")
	require.True(t, loki.IsUnavailable(err))
	requireCause(t, number(40613), err)

	s.Answer = looks(nil, nil, 0, 0)
	err = mssqlhandler.Check(t.Context(), db)
	require.ErrorContains(t, err, "no such table")
	require.False(t, loki.IsUnavailable(err))

	_, s, db = newStub(t, nil)
	s.DialErr = refused
	require.True(t, loki.IsUnavailable(mssqlhandler.Check(t.Context(), db)))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = mssqlhandler.Check(ctx, db)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, loki.IsUnavailable(err))
}

// The catalog shows nothing of a table to a login without any right to it, as it shows nothing of one that is not there:
// the server tells them apart when it is asked to read it.
func TestCheckNamesTheMissingGrant(t *testing.T) {
	const grant = "run GRANT INSERT, UPDATE ON [dbo].[LokiLockings] TO [a]]b]"
	for name, c := range map[string]struct {
		read      error
		says, not string
	}{
		"there":       {number(229), "this login (a]b) may not do all that a handler does with [dbo].[LokiLockings]: " + grant, "migrations"},
		"readable":    {nil, "this login (a]b) may not do all that a handler does with [dbo].[LokiLockings]: " + grant, "migrations"},
		"not there":   {number(208), "returns for the same options, if it is not there; and in any case " + grant, "may not do"},
		"either":      {number(33557097), "returns for the same options, if it is not there; and in any case " + grant, "may not do"},
		"unavailable": {number(40613), "looking at [dbo].[LokiLockings]", "GRANT"},
		"broken":      {io.EOF, "looking at [dbo].[LokiLockings]", "GRANT"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s, db := newStub(t, nil)
			s.Answer = looks([]string{"INSERT", "UPDATE"}, c.read, 0, 0)
			err := mssqlhandler.Check(t.Context(), db)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), c.not)
		})
	}
}

// A readable secondary replica has the table and the rights, and refuses every write. Public reports of the kind, from
// other databases:
// https://github.com/vgarvardt/gue/issues/202
// https://github.com/timgit/pg-boss/issues/209
func TestCheckNamesADatabaseThatCannotBeWritten(t *testing.T) {
	_, s, db := newStub(t, nil)
	s.Answer = looks(nil, nil, 0, 1)
	err := mssqlhandler.Check(t.Context(), db)
	require.ErrorContains(t, err, "the database is read-only: connect to the primary replica, by the availability group's listener and without ApplicationIntent=ReadOnly")
	require.NotContains(t, err.Error(), "IMPLICIT_TRANSACTIONS")
	require.False(t, loki.IsUnavailable(err))

	s.Answer = looks([]string{"DELETE"}, nil, 1, 1)
	err = mssqlhandler.Check(t.Context(), db)
	for _, says := range []string{"the database is read-only", "leave SET IMPLICIT_TRANSACTIONS ON out", "run GRANT DELETE ON [dbo].[LokiLockings] TO [a]]b]"} {
		require.ErrorContains(t, err, says, "every fault at once")
	}
}

// looks answers what Check asks of a table that the catalog does not show to the user a]b: the rights that are missing, the
// error of reading the table, and whether the session has implicit transactions and the database is read-only.
func looks(missing []string, read error, implicit, readOnly int64) func(int, sqltest.Call) ([]sqltest.ResultSet, error) {
	return func(number int, call sqltest.Call) ([]sqltest.ResultSet, error) {
		switch statement := call.Statement; {
		case strings.Contains(statement, "sys.columns"):
			return []sqltest.ResultSet{{Columns: make([]string, 6)}}, nil
		case strings.HasPrefix(statement, "SELECT 1 FROM [dbo].[LokiLockings]"):
			return nil, read
		case strings.Contains(statement, "ReadOnly"):
			return []sqltest.ResultSet{{Columns: make([]string, 2), Rows: [][]driver.Value{{implicit, readOnly}}}}, nil
		}
		answer := sqltest.ResultSet{Columns: make([]string, 3)}
		for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			answer.Rows = append(answer.Rows, []driver.Value{"a]b", right, !slices.Contains(missing, right)})
		}
		return []sqltest.ResultSet{answer}, nil
	}
}

// It is not parallel: a server that only speaks T-SQL looks through the columns of all tables, and fails if one of them goes
// meanwhile.
func TestServerCheck(t *testing.T) {
	s := newStore(t)
	with := func(opts ...mssqlhandler.Option) []mssqlhandler.Option {
		return append(opts, mssqlhandler.WithTable(s.table))
	}
	require.NoError(t, mssqlhandler.Check(t.Context(), s.db, with()...))
	require.NoError(t, mssqlhandler.Check(t.Context(), s.db, with(mssqlhandler.WithHistory(time.Hour))...))

	own := *s
	own.table += "_check"
	check := func(opts ...mssqlhandler.Option) error {
		return mssqlhandler.Check(t.Context(), s.db, append(opts, mssqlhandler.WithTable(own.table))...)
	}
	require.ErrorContains(t, check(), "no such table")
	require.NoError(t, migrations.Apply(t.Context(), s.db.DB, migrations.WithTable(own.table)))
	t.Cleanup(func() {
		_, err := s.db.ExecContext(context.WithoutCancel(t.Context()), own.on("DROP TABLE $T"))
		require.NoError(t, err)
	})
	require.NoError(t, check())
	require.ErrorContains(t, check(mssqlhandler.WithHistory(time.Hour)), "migrations.Apply with migrations.WithHistory")
	require.ErrorContains(t, check(mssqlhandler.WithHistory(time.Hour)), "the column RunEndedAt is not there (migration 000003)")
	own.exec(t, "ALTER TABLE $T DROP COLUMN Fence")
	own.exec(t, "ALTER TABLE $T DROP COLUMN Holder")
	err := check()
	require.ErrorContains(t, err, "the column Fence is not there (migration 000002)")
	require.ErrorContains(t, err, "the column Holder is not there", "every fault at once")
}

// A login that has been given nothing is told what to run, and nothing more is needed.
func TestServerLoginWithTheRightsThatAreNeeded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	own := *s
	own.table += "_rights"
	login := "loki_test_" + strings.ToLower(rand.Text())
	const password = "Only-for-tests-1"
	admin := func(statement string) {
		t.Helper()
		_, err := s.db.ExecContext(context.WithoutCancel(t.Context()), own.on(statement))
		require.NoError(t, err)
	}
	if _, err := s.db.ExecContext(t.Context(), "CREATE LOGIN ["+login+"] WITH PASSWORD = '"+password+"'"); err != nil {
		t.Skip("this login may not make logins: ", err)
	}
	admin("CREATE USER [" + login + "] FOR LOGIN [" + login + "]")
	dsn, err := url.Parse(dsn(t))
	require.NoError(t, err)
	dsn.User = url.UserPassword(login, password)
	db, err := sqlx.Open("sqlserver", dsn.String())
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		require.NoError(t, db.Close())
		admin("DROP USER [" + login + "]")
		require.Eventually(t, func() bool {
			_, err := s.db.ExecContext(context.WithoutCancel(t.Context()), "DROP LOGIN ["+login+"]")
			return err == nil
		}, 10*time.Second, 50*time.Millisecond, "its session has ended")
	})
	own.migrate(t)
	opts := []mssqlhandler.Option{mssqlhandler.WithTable(own.table), mssqlhandler.WithHistory(time.Hour)}
	h := mssqlhandler.New(db, opts...)

	err = mssqlhandler.Check(t.Context(), db, opts...)
	require.ErrorContains(t, err, "run GRANT SELECT, INSERT, UPDATE, DELETE ON "+own.on("$T")+" TO ["+login+"]")
	require.ErrorContains(t, err, "run GRANT SELECT, INSERT, DELETE ON "+own.on("$H")+" TO ["+login+"]")
	c := s.Claim("k")
	refused := func(err error) {
		t.Helper()
		require.Error(t, err)
		require.False(t, loki.IsUnavailable(err), "%v", err)
		require.NoError(t, db.PingContext(t.Context()), "the only connection is as good as before")
	}
	for _, right := range []string{"SELECT", "INSERT", "UPDATE"} {
		_, err := h.Lock(t.Context(), c)
		refused(err)
		admin("GRANT " + right + " ON $T TO [" + login + "]")
		admin("GRANT " + strings.Replace(right, "UPDATE", "DELETE", 1) + " ON $H TO [" + login + "]")
	}
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	refused(h.Release(t.Context(), c))
	admin("GRANT DELETE ON $T TO [" + login + "]")
	require.NoError(t, mssqlhandler.Check(t.Context(), db, opts...))
	held, err = h.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(t.Context(), c))
	runs, err := h.History(t.Context(), c.Key, 1)
	require.NoError(t, err)
	require.Len(t, runs, 1)
}

// silent is a server that takes connections and says nothing.
type silent struct{}

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Driver() driver.Driver { return nil }

// A service gives Check the context that it runs with.
func TestCheckEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sqlx.NewDb(sql.OpenDB(silent{}), "sqlserver")
		defer db.Close()
		begun := time.Now()
		err := mssqlhandler.Check(t.Context(), db)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.Equal(t, 10*time.Second, time.Since(begun))
	})
}
