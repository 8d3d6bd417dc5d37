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
		s.KillAll(t, 2, func(pid int) error {
			_, err := s.Admin.ExecContext(t.Context(), fmt.Sprintf(s.Kill, pid))
			return err
		})
	}
	c := s.Claim("k")
	c.Expiry = time.Hour // to end sessions, and to begin others, may take a server long
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
	var pid int
	require.NoError(t, s.DB.QueryRowContext(t.Context(), s.PID).Scan(&pid)) // of the session that is left for the call
	c := s.Claim("k")
	_, err = tx.ExecContext(t.Context(), s.Occupy, c.Key)
	require.NoError(t, err)

	_, err = s.Lock(within(t, 200*time.Millisecond), c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if s.EndsAtOnce {
		s.requireNotAtWork(t, pid)
	}
	require.NoError(t, tx.Rollback())
	s.requireNotAtWork(t, pid)
	require.NoError(t, s.Release(within(t, 15*time.Second), c))
	require.Zero(t, s.Count(t))
	// A driver may go on for a while: it waits for the server to confirm that it has stopped.
	require.Eventually(t, func() bool { return s.DB.Stats().InUse == 0 }, 15*time.Second, 10*time.Millisecond)
	s.EveryOperation(t)
}

// requireNotAtWork requires that the session of a number is idle, or over, in the end.
func (s *Store) requireNotAtWork(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var statements int
		s.Get(t, &statements, fmt.Sprintf(s.AtWork, pid))
		return statements == 0
	}, 15*time.Second, 5*time.Millisecond)
}
