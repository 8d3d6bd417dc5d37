package postgreshandler_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

func TestMistakesOfNewAreKeptForValidate(t *testing.T) {
	s := &sqltest.Stub{Answer: sqltest.Always(granted(1), nil)}
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	for says, h := range map[string]*postgreshandler.Handler{
		"database is nil":                  postgreshandler.New(nil),
		"name of the table is empty":       postgreshandler.New(db, postgreshandler.WithTable("")),
		"name of the schema is":            postgreshandler.New(db, postgreshandler.WithSchema("")),
		"at most 49":                       postgreshandler.New(db, postgreshandler.WithTable(strings.Repeat("t", 50))),
		"at most 63":                       postgreshandler.New(db, postgreshandler.WithSchema(strings.Repeat("s", 64))),
		"control character":                postgreshandler.New(db, postgreshandler.WithTable("a\nb")),
		"not valid UTF-8":                  postgreshandler.New(db, postgreshandler.WithTable("\xff")),
		"WithHistory: 0s is not possible":  postgreshandler.New(db, postgreshandler.WithHistory(0)),
		"WithListenDSN: the data source":   postgreshandler.New(db, postgreshandler.WithListenDSN("")),
		"option 2 is nil":                  postgreshandler.New(db, postgreshandler.WithTable("t"), nil),
		"postgreshandler: this Handler wa": {},
	} {
		t.Run(says, func(t *testing.T) {
			require.ErrorContains(t, h.Validate(), says)
			_, err := h.Notify(t.Context(), "k")
			require.ErrorContains(t, err, says)
			for op, send := range operations {
				if says != "postgreshandler: this Handler wa" {
					require.ErrorContains(t, send(t.Context(), h), says, op)
				} else {
					require.ErrorContains(t, send(t.Context(), h), "was not made by New", op)
				}
			}
			require.NoError(t, h.Close())
		})
	}
	require.Empty(t, s.Sent())
	require.ErrorContains(t, (*postgreshandler.Handler)(nil).Validate(), "was not made by New")

	err := postgreshandler.New(nil, nil, postgreshandler.WithTable(""), postgreshandler.WithHistory(-1)).Validate()
	for _, says := range []string{"option 1 is nil", "name of the table", "WithHistory", "database is nil"} {
		require.ErrorContains(t, err, says, "every mistake at once")
	}
	require.NoError(t, postgreshandler.New(db).Validate())
}

// What the application opened is read by the driver at the first call, and its error repeats all that it could not read.
//
// https://github.com/golang-migrate/migrate/issues/1242
func TestNoSecretIsRepeated(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:Ab@S3cret@127.0.0.1:1/app?sslmode=nope", "postgres://u:Ab@S3cret@127.0.0.1:1/app", "postgres://u:12/S3cret@127.0.0.1:1/app",
		"host=127.0.0.1 password = S3cret sslmode=nope", "host=127.0.0.1 PASSWORD=S3cret sslmode=nope", "host=127.0.0.1 password='S3cret sslmode=nope", "host=127.0.0.1 port=S3cret",
	} {
		_, err := postgreshandler.Open(dsn)
		require.Error(t, err, "%q", dsn)
		require.NotContains(t, fmt.Sprintf("%v %+v", err, err), "S3cret", "%q", dsn)
		require.ErrorContains(t, postgreshandler.New(nil, postgreshandler.WithListenDSN(dsn)).Validate(), "WithListenDSN: the data source name ")

		db, err := sql.Open("pgx", dsn)
		require.NoError(t, err, "it is not read yet")
		h := postgreshandler.New(db)
		errs := map[string]error{"check": postgreshandler.Check(within(t, 5*time.Second), db), "migrations": migrations.Apply(within(t, 5*time.Second), db)}
		for op, send := range operations {
			errs[op] = send(within(t, 5*time.Second), h)
		}
		_, errs["notify"] = h.Notify(within(t, 5*time.Second), "k")
		for op, err := range errs {
			require.Error(t, err, op)
			for ; err != nil; err = errors.Unwrap(err) {
				require.NotContains(t, fmt.Sprintf("%v %+v", err, err), "S3cret", "%s with %q", op, dsn)
			}
		}
		require.NoError(t, db.Close())
	}
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for says, open := range map[string]func() (*postgreshandler.Handler, error){
		"is empty": func() (*postgreshandler.Handler, error) { return postgreshandler.Open("") },
		"cannot be used": func() (*postgreshandler.Handler, error) {
			return postgreshandler.Open("postgres://app:s3cret@host:port/db")
		},
		"data source name cannot": func() (*postgreshandler.Handler, error) {
			return postgreshandler.Open("host=h password=s3cret sslmode=maybe")
		},
		"name of the table is": func() (*postgreshandler.Handler, error) {
			return postgreshandler.Open("postgres://host", postgreshandler.WithTable(""))
		},
	} {
		h, err := open()
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "s3cret")
		require.Nil(t, h, "never half a handler")
	}
}
