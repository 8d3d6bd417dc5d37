package sqltest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// Handler is what every SQL handler can do.
type Handler interface {
	loki.LockHandler
	loki.Granter
	loki.Extender
	loki.Releaser
	loki.Inspector
	loki.Validator
	History(ctx context.Context, key string, limit int) ([]sqlhandler.Run, error)
}

// Store is a handler on a table of a real server, and the statements by which the suite reads and changes that table.
type Store struct {
	Handler

	DB     *sql.DB // the pool that Handler uses
	Admin  *sql.DB // another pool on the same server, or the same
	Prefix string  // what the keys of one test begin with, if several tests share the table

	Statements

	// RaisesFences says that a grant may raise its fencing token after it has been recorded, so that the same claim, granted
	// twice at once, may be told an earlier one.
	RaisesFences bool

	// EndsAtOnce says that the server ends a statement that waits for a row as soon as its call has ended.
	EndsAtOnce bool
}

// Statements are in the store's SQL.
type Statements struct {
	Clock    string // answers the server's clock, in microseconds since 1970
	Session  string // answers a text: the settings of the session, and what it holds
	PID      string // answers the number of the session
	Kill     string // ends the session of a number, which is put in for %d
	Rows     string // answers the number of rows whose keys begin with a text
	Key      string // answers the key in the row that has a token
	Until    string // answers the expiry in the row of a key, in microseconds since 1970
	Expire   string // makes the row of a key expire
	SetFence string // makes the row of a key expire, and sets its fencing token to a number
	Occupy   string // inserts a row for a key as another program would
	AtWork   string // answers how many statements the session of a number is at, which is put in for %d
}

// Claim returns a new claim on a key of the test's own.
func (s *Store) Claim(key string) loki.Claim {
	return loki.Claim{Key: s.Prefix + key, Token: rand.Text(), Expiry: 30 * time.Second, Holder: "host/" + rand.Text()[:4]}
}

// Get scans the first column of the first row that a statement answers.
func (s *Store) Get(t *testing.T, dest any, statement string, args ...any) {
	t.Helper()
	require.NoError(t, s.Admin.QueryRowContext(t.Context(), statement, args...).Scan(dest))
}

// Exec runs a statement.
func (s *Store) Exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := s.Admin.ExecContext(t.Context(), statement, args...)
	require.NoError(t, err)
}

// Count returns how many rows the test has in the table.
func (s *Store) Count(t *testing.T) (rows int) {
	t.Helper()
	s.Get(t, &rows, s.Rows, s.Prefix)
	return rows
}

// End makes the claim on key expire, as time would.
func (s *Store) End(t *testing.T, key string) {
	t.Helper()
	s.Exec(t, s.Expire, key)
}

// MustGrant returns the fencing token of c, which must be granted.
func (s *Store) MustGrant(t *testing.T, c loki.Claim) int64 {
	t.Helper()
	g, err := s.Grant(t.Context(), c)
	require.NoError(t, err)
	require.True(t, g.Held)
	require.Zero(t, g.HeldBy)
	return g.Fence
}

// MustBeBusy returns who holds the key of c, which must be refused.
func (s *Store) MustBeBusy(t *testing.T, c loki.Claim) loki.Holder {
	t.Helper()
	g, err := s.Grant(t.Context(), c)
	require.NoError(t, err)
	require.False(t, g.Held)
	require.Zero(t, g.Fence)
	require.NotEmpty(t, g.HeldBy.ID, "a refusal names the holder")
	return g.HeldBy
}

// MustExtend requires that an extension of c finds it held, or not.
func (s *Store) MustExtend(t *testing.T, c loki.Claim, want bool) {
	t.Helper()
	held, err := s.Extend(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, held)
}

// MustRelease requires that a release of c succeeds, whether c held or not.
func (s *Store) MustRelease(t *testing.T, c loki.Claim) {
	t.Helper()
	require.NoError(t, s.Release(t.Context(), c))
}

// EveryOperation uses each statement at least once.
func (s *Store) EveryOperation(t *testing.T) {
	t.Helper()
	c := s.Claim("every operation")
	fence := s.MustGrant(t, c)
	require.Equal(t, fence, s.MustGrant(t, c))
	s.MustBeBusy(t, s.Claim("every operation"))
	s.MustExtend(t, c, true)
	_, held, err := s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	require.True(t, held)
	s.MustRelease(t, c)
	require.Zero(t, s.Count(t))
}

// Race has contenders ask for one key at once, and returns the claims that were granted.
func (s *Store) Race(t *testing.T, key string, contenders int) (won []loki.Claim) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards won
		start = make(chan struct{})
	)
	for range contenders {
		wg.Go(func() {
			<-start
			c := s.Claim(key)
			g, err := s.Grant(t.Context(), c)
			if err != nil {
				t.Error(err)
			} else if g.Held {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c)
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}

// clock returns the server's.
func (s *Store) clock(t *testing.T) (now int64) {
	t.Helper()
	s.Get(t, &now, s.Clock)
	return now
}

// KillAll leaves n idle connections in the handler's pool whose sessions the server has ended.
func (s *Store) KillAll(t *testing.T, n int, kill func(pid int) error) {
	t.Helper()
	s.DB.SetMaxIdleConns(n)
	var conns []*sql.Conn
	for failed := 0; len(conns) < n; {
		conn, err := s.DB.Conn(t.Context())
		require.NoError(t, err)
		var pid int
		err = conn.QueryRowContext(t.Context(), s.PID).Scan(&pid)
		if err == nil {
			err = kill(pid)
		}
		if err != nil { // it died last time, or the server does not list it
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
			_ = conn.Close()
			require.Less(t, failed, 10, "%v", err)
			failed++
			continue
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Equal(t, n, s.DB.Stats().Idle)
}

// within returns a context that ends.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
