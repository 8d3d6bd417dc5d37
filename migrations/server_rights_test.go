package migrations_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/migrations"
)

// loginWithoutRights is another pool, of a login that may do nothing, until the test ends.
func (s *server) loginWithoutRights(t *testing.T) *sql.DB {
	t.Helper()
	login := "loki_test_" + strings.ToLower(rand.Text())
	const password = "Only-for-tests-1"
	if _, err := s.ExecContext(t.Context(), "CREATE LOGIN ["+login+"] WITH PASSWORD = '"+password+"'"); err != nil {
		t.Skip("this login may not make logins: ", err)
	}
	ctx := context.WithoutCancel(t.Context())
	_, err := s.ExecContext(ctx, "CREATE USER ["+login+"] FOR LOGIN ["+login+"]")
	require.NoError(t, err)
	dsn, err := url.Parse(os.Getenv("LOKI_TEST_MSSQL_DSN"))
	require.NoError(t, err)
	dsn.User = url.UserPassword(login, password)
	db, err := sql.Open("sqlserver", dsn.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, db.Close())
		_, err := s.ExecContext(ctx, "DROP USER ["+login+"]")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := s.ExecContext(ctx, "DROP LOGIN ["+login+"]")
			return err == nil
		}, 10*time.Second, 50*time.Millisecond, "its session has ended")
	})
	return db
}

// Whatever number the server has for it, the error says who has to run what.
func TestServerLoginWithoutTheRights(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	db := s.loginWithoutRights(t)
	err := migrations.Apply(t.Context(), db, migrations.WithTable(s.Name))
	require.ErrorContains(t, err, s.Quoted())
	require.ErrorContains(t, err, "or its schema does not exist")
	require.ErrorContains(t, err, "have somebody with CREATE TABLE and ALTER on the schema call migrations.Apply")
}
