package mssqlhandler_test

import (
	"net/url"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// What a server says that is asked with a wrong password, for a database that it has not, and for a table that is not there.
func TestServerMistakes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	open := func(change func(*url.URL)) *sqlx.DB {
		u, err := url.Parse(dsn(t))
		require.NoError(t, err)
		change(u)
		db, err := sqlx.Open("sqlserver", u.String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	password := open(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wrong") })
	database := open(func(u *url.URL) {
		q := u.Query()
		q.Set("database", "loki_test_nowhere")
		u.RawQuery = q.Encode()
	})
	for says, db := range map[string]*sqlx.DB{"see the user and the password": password, "the data source name": database} {
		require.ErrorContains(t, operations["lock"](t.Context(), mssqlhandler.New(db)), says)
		require.ErrorContains(t, mssqlhandler.Check(t.Context(), db), says)
	}
	for op, send := range operations {
		err := send(t.Context(), mssqlhandler.New(s.db, mssqlhandler.WithTable("loki_test_nowhere")))
		require.False(t, loki.IsUnavailable(err))
		require.Regexp(t, `run migrations\.Apply|mssqlhandler\.Check says`, err.Error(), op)
	}
}
