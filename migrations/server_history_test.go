package migrations_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// applyWithHistory makes both tables, the second of which is dropped with the test.
func (s *server) applyWithHistory(ctx context.Context) error {
	return migrations.Apply(ctx, s.DB, migrations.WithSchema(s.Schema), migrations.WithTable(s.Name), migrations.WithHistory())
}

func newServerWithHistory(t *testing.T) *server {
	t.Helper()
	s := newServer(t)
	t.Cleanup(func() {
		_, err := s.ExecContext(context.WithoutCancel(t.Context()), s.Fill("DROP TABLE IF EXISTS [dbo].[LokiLockingsHistory]"))
		require.NoError(t, err)
	})
	return s
}

// requireRemembering takes and gives back a lock, and finds that in the history.
func (s *server) requireRemembering(t *testing.T) {
	t.Helper()
	h := mssqlhandler.New(sqlx.NewDb(s.DB, "sqlserver"), mssqlhandler.WithSchema(s.Schema), mssqlhandler.WithTable(s.Name), mssqlhandler.WithHistory(time.Hour))
	c := loki.Claim{Key: "remembered", Token: "token", Expiry: time.Minute, Holder: "test"}
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(t.Context(), c))
	runs, err := h.History(t.Context(), c.Key, 1)
	require.NoError(t, err)
	require.Len(t, runs, 1)
}

// An installation that has been in use for long gets the second table while claims are held, and loses it again.
func TestServerHistoryComesAndGoes(t *testing.T) {
	t.Parallel()
	s := newServerWithHistory(t)
	require.NoError(t, s.apply(t.Context()))
	s.exec(t, "INSERT INTO [dbo].[LokiLockings] (ServiceKey, CreationDate, Token, ExpiresAt, Fence) VALUES (N'held', GETUTCDATE(), N't', '20990101', 1)")
	require.NoError(t, s.applyWithHistory(t.Context()))
	require.NoError(t, s.applyWithHistory(t.Context()), "again")
	require.NoError(t, s.run(t, "000003", "up"), "as golang-migrate would")
	s.requireRemembering(t)
	require.Equal(t, []string{"held"}, s.keys(t), "the table of locks is not touched")

	require.NoError(t, s.run(t, "000003", "down"))
	require.NoError(t, s.run(t, "000003", "down"), "again")
	s.requireWorking(t)
	require.NoError(t, s.run(t, "000003", "up"))
	s.requireRemembering(t)
}

// A run that was cut off between the table and its index is finished by the next.
func TestServerHistoryThatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newServerWithHistory(t)
	require.NoError(t, s.applyWithHistory(t.Context()))
	s.exec(t, "DROP INDEX [IX_ServiceKey] ON [dbo].[LokiLockingsHistory]")
	require.NoError(t, s.applyWithHistory(t.Context()))
	s.exec(t, "DROP INDEX [IX_ServiceKey] ON [dbo].[LokiLockingsHistory]") // it is there again
	require.NoError(t, s.run(t, "000003", "up"))
	s.requireRemembering(t)
}

func TestServerHistoryAppliedByManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newServerWithHistory(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.applyWithHistory(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.requireRemembering(t)
}
