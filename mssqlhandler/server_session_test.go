package mssqlhandler_test

import (
	"database/sql"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/mssqlhandler"
)

// A claim that was told to be held would be in a transaction that nobody commits.
func TestServerImplicitTransactionsAreRefused(t *testing.T) {
	t.Parallel()
	connector, err := mssql.NewConnector(dsn(t))
	require.NoError(t, err)
	connector.SessionInitSQL = "SET IMPLICIT_TRANSACTIONS ON"
	s := newStoreOn(t, sql.OpenDB(connector), "sqlserver")
	s.db.SetMaxOpenConns(1)
	c := s.Claim("k")
	for op, send := range map[string]func() error{
		"lock":    func() error { _, err := s.Lock(t.Context(), c); return err },
		"extend":  func() error { _, err := s.Extend(t.Context(), c); return err },
		"release": func() error { return s.Release(t.Context(), c) },
	} {
		err := send()
		require.ErrorContains(t, err, "leave SET IMPLICIT_TRANSACTIONS ON out", op)
		require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
	err = mssqlhandler.Check(t.Context(), s.db, mssqlhandler.WithTable(s.table))
	require.ErrorContains(t, err, "leave SET IMPLICIT_TRANSACTIONS ON out")
	require.Zero(t, s.Count(t))
}
