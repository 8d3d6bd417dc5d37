package mssqlhandler_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // the zones, also where the system has none

	"github.com/jmoiron/sqlx"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

// clockServer does for one key what the statements do, by the length of an expiry that it is sent and by its own clock.
type clockServer struct {
	ahead time.Duration // of the instances' clocks

	mu    sync.Mutex // guards what follows
	token string
	until time.Time
}

func (c *clockServer) now() time.Time { return time.Now().Add(c.ahead) }

// left is what the claim has left.
func (c *clockServer) left() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until.Sub(c.now())
}

func (c *clockServer) answer(args []any) []sqltest.ResultSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	token := string(args[1].(mssql.NVarCharMax))
	holds := c.token == token && c.until.After(c.now())
	expiry := func(at int) time.Duration {
		ms := args[at].(int64)*1000 + args[at+1].(int64)
		return time.Duration(ms) * time.Millisecond
	}
	switch len(args) {
	case 9: // grant
		if !holds && c.until.After(c.now()) {
			return busy("the other")
		}
		c.token, c.until = token, c.now().Add(expiry(3))
		return granted(c.now().UnixMicro())
	case 5: // extend
		if !holds {
			return held(0)
		}
		c.until = c.now().Add(expiry(2))
		return held(1)
	}
	if c.token == token { // release
		c.until = time.Time{}
	}
	return answers["release"]
}

// down is a primary that is.
type down struct{}

func (down) Lock(context.Context, loki.Claim) (bool, error) {
	return false, loki.Unavailable(errors.New("down"))
}
func (down) Release(context.Context, loki.Claim) error { return loki.Unavailable(errors.New("down")) }

// instance is a Locker that falls back to the server, and what cuts it off.
func (c *clockServer) instance(t *testing.T) (l *loki.Locker, cut func()) {
	s := &sqltest.Stub{}
	var isCut atomic.Bool
	s.Answer = func(number int, call sqltest.Call) ([]sqltest.ResultSet, error) {
		if isCut.Load() {
			return nil, refused
		}
		return c.answer(call.Args), nil
	}
	db := sqlx.NewDb(sql.OpenDB(s), "sqlserver")
	t.Cleanup(func() { _ = db.Close() })
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: down{}, Secondary: mssqlhandler.New(db)})
	require.NoError(t, err)
	return l, func() { isCut.Store(true) }
}

// takeOver tries every 100 ms and returns how long it took.
func takeOver(t *testing.T, l *loki.Locker) time.Duration {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := l.ExecuteWithinLock(t.Context(), 2*time.Second, func(context.Context) error { return nil })
		if err == nil {
			return time.Since(begun)
		}
		require.ErrorIs(t, err, loki.ErrBusy)
	}
}

// A holds, is cut off as if it were killed, and B takes over.
func (c *clockServer) requireTakenOverInTime(t *testing.T, expiry time.Duration) {
	t.Helper()
	a, cut := c.instance(t)
	b, _ := c.instance(t)
	_, err := a.Acquire(t.Context(), expiry)
	require.NoError(t, err)
	require.Equal(t, expiry, c.left())
	for range 30 {
		require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { return nil }), loki.ErrBusy)
		time.Sleep(100 * time.Millisecond)
	}
	cut()
	left := c.left()
	took := takeOver(t, b)
	require.GreaterOrEqual(t, took, left)
	require.LessOrEqual(t, took, left+100*time.Millisecond)
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, a.Close(t.Context()))
}

// Near the change of daylight saving time a local clock jumps by an hour. The test is not parallel: the zone is everybody's.
func TestCase054_DaylightSaving(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Amsterdam")
	require.NoError(t, err)
	local := time.Local
	time.Local = zone
	defer func() { time.Local = local }()
	for name, at := range map[string]time.Time{
		"spring": time.Date(2026, 3, 29, 0, 59, 57, 500_000_000, time.UTC),
		"autumn": time.Date(2026, 10, 25, 0, 59, 57, 500_000_000, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(at))
				_, before := time.Now().Zone()
				(&clockServer{}).requireTakenOverInTime(t, 2*time.Second)
				_, after := time.Now().Zone()
				require.NotEqual(t, before, after, "the clock did jump")
			})
		})
	}
}

func TestCase057_TheServersClockDecides(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute, 1000 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, expiry := range []time.Duration{2 * time.Second, 30 * time.Second} {
					(&clockServer{ahead: ahead}).requireTakenOverInTime(t, expiry)
				}
			})
		})
	}
}

// Whatever the client's clock and zone, the same is sent.
func TestCase057_NoStatementCarriesAClientsTime(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	for op, send := range operations {
		synctest.Test(t, func(t *testing.T) {
			h, s, _ := newStub(t, sqltest.Always(nil, number(102)), mssqlhandler.WithLokiNetExpiry(time.Hour), mssqlhandler.WithHistory(time.Hour))
			for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 5*3600+1800)} {
				time.Local = zone
				require.Error(t, send(t.Context(), h), op)
				time.Sleep(400*24*time.Hour + 12345*time.Microsecond)
			}
			require.Equal(t, s.Sent()[0], s.Sent()[1], op)
		})
	}
}
