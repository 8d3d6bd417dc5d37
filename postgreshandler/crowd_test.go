package postgreshandler_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
)

// A pool without a limit must not open a connection for each caller: the server has 100 by default, for all.
func TestManyCallersShareFewConnections(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, postgrestest.Start(t, "-c", "max_connections=40"))
	crowd := s.open(t)
	const callers = 2000
	var (
		calls sync.WaitGroup
		held  atomic.Int64
	)
	for i := range callers {
		calls.Go(func() {
			c := s.Claim(fmt.Sprint(i))
			ok, err := crowd.Lock(t.Context(), c)
			if err == nil && ok {
				held.Add(1)
				err = crowd.Release(t.Context(), c)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	require.EqualValues(t, callers, held.Load())
}

// The application has the pool's only connection in a transaction.
//
// https://github.com/nextlyhq/nextly/pull/777
func TestAFullPoolIsNamed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.db.SetMaxOpenConns(1)
	c := s.Claim("k")
	s.MustGrant(t, c)
	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = s.Extend(within(t, 300*time.Millisecond), c)
	require.True(t, loki.IsUnavailable(err))
	require.ErrorContains(t, err, "the pool had no connection free within")
	require.ErrorContains(t, err, "1 in use, 0 idle, SetMaxOpenConns 1")
	require.NoError(t, tx.Rollback())
	s.MustExtend(t, c, true)
}
