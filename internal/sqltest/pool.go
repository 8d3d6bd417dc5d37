package sqltest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A pool of one connection is enough, and its session is left as it was.
func testPoolOfOne(t *testing.T, s *Store) {
	s.DB.SetMaxOpenConns(1)
	session := func() (settings string) {
		require.NoError(t, s.DB.QueryRowContext(t.Context(), s.Session).Scan(&settings))
		return settings
	}
	before := session()
	s.EveryOperation(t)
	require.Equal(t, before, session())
	require.Zero(t, s.DB.Stats().InUse)
}

// A claim is no part of a transaction that the application has open, is visible to others at once, and stays when that is
// rolled back.
func testForeignTransaction(t *testing.T, s *Store) {
	s.DB.SetMaxOpenConns(2)
	tx, err := s.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), s.Occupy, s.Claim("the application's own").Key)
	require.NoError(t, err)

	c := s.Claim("k")
	s.MustGrant(t, c)
	s.MustBeBusy(t, s.Claim("k"))
	require.NoError(t, tx.Rollback())
	s.MustBeBusy(t, s.Claim("k"))
	s.MustRelease(t, c)
	require.Zero(t, s.Count(t))
}

// Sessions that the server ends cost a claim nothing, and the next call finds a connection that works.
func testClaimsOutliveTheirConnections(t *testing.T, s *Store) {
	kill := func() {
		s.KillAll(t, 2, func(pid int) { s.Exec(t, fmt.Sprintf(s.Kill, pid)) })
	}
	c := s.Claim("k")
	s.MustGrant(t, c)
	kill()
	s.MustExtend(t, c, true)
	kill()
	s.MustBeBusy(t, s.Claim("k"))
	kill()
	s.MustRelease(t, c)
	require.Zero(t, s.Count(t))
	kill()
	s.MustGrant(t, c)
}

// A call that ends while it waits for a row leaves nothing behind, not even a session that waits. A server that does not
// notice in time records the claim when the row is free: a release, which the Locker sends, removes it.
func testContextEndsWhileWaiting(t *testing.T, s *Store) {
	s.DB.SetMaxOpenConns(2)
	s.EveryOperation(t) // so that it is the row that the call waits for
	tx, err := s.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // only if the test failed
	s.EveryOperation(t)
	c := s.Claim("k")
	_, err = tx.ExecContext(t.Context(), s.Occupy, c.Key)
	require.NoError(t, err)

	_, err = s.Lock(within(t, 200*time.Millisecond), c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if s.Waiting != "" {
		require.Eventually(t, func() bool {
			var waiting int
			s.Get(t, &waiting, s.Waiting)
			return waiting == 0
		}, 15*time.Second, 5*time.Millisecond)
	}
	require.NoError(t, tx.Rollback())
	var left int
	require.Eventually(t, func() bool {
		for range 2 { // it may be recorded between a release and a look
			if s.Release(t.Context(), c) != nil {
				return false
			}
			left = s.Count(t)
		}
		return left == 0
	}, 15*time.Second, 100*time.Millisecond)
	// A driver may go on for a while: it waits for the server to confirm that it has stopped.
	require.Eventually(t, func() bool { return s.DB.Stats().InUse == 0 }, 15*time.Second, 10*time.Millisecond)
	s.EveryOperation(t)
}
