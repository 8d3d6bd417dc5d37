package sqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// network is what the connections of a pool go through. One that was made before the network forgot is answered never.
type network struct {
	*stub
	forgotten atomic.Int64 // the number of connections that were made until then
	made      atomic.Int64
	open      atomic.Int64
	most      atomic.Int64
	answers   chan struct{} // if not nil, each answer waits for a value
	latency   time.Duration // how long an answer takes otherwise
	resets    bool          // an idle connection is asked for a sign of life before it is used
}

func newNetwork(t *testing.T, change ...func(*sqlhandler.Dialect)) (*network, *sqlhandler.Base) {
	t.Helper()
	h, s := newStub(t, func(int) ([][]driver.Value, error) {
		return [][]driver.Value{{int64(1), int64(1), nil, nil, nil, nil}}, nil
	}, change...)
	n := &network{stub: s}
	s.connect = func() (driver.Conn, error) {
		number := n.made.Add(1)
		n.most.Store(max(n.most.Load(), n.open.Add(1)))
		return &networkConn{stubConn: stubConn{s}, network: n, number: number}, nil
	}
	return n, h
}

func (n *network) forget() { n.forgotten.Store(n.made.Load()) }

type networkConn struct {
	stubConn
	network *network
	number  int64
	broken  bool // a call was cut off
}

func (c *networkConn) IsValid() bool { return !c.broken }

func (c *networkConn) ResetSession(ctx context.Context) error {
	if c.network.resets && c.number <= c.network.forgotten.Load() {
		<-ctx.Done()
		return driver.ErrBadConn
	}
	return nil
}

func (c *networkConn) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	var answer <-chan struct{}
	var late <-chan time.Time
	if c.number > c.network.forgotten.Load() {
		if answer = c.network.answers; answer == nil {
			late = time.After(c.network.latency)
		}
	}
	select {
	case <-late:
		return c.stubConn.QueryContext(ctx, statement, args)
	case <-answer:
		return c.stubConn.QueryContext(ctx, statement, args)
	case <-ctx.Done():
		c.broken = true
		return nil, ctx.Err()
	}
}

func (c *networkConn) Close() error {
	c.network.open.Add(-1)
	return nil
}

// idle leaves n idle connections in the pool.
func (n *network) idle(t *testing.T, count int) {
	t.Helper()
	n.db.SetMaxIdleConns(count)
	conns := make([]*sql.Conn, count)
	for i := range conns {
		var err error
		conns[i], err = n.db.Conn(t.Context())
		require.NoError(t, err)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Equal(t, count, n.db.Stats().Idle)
}

// A second attempt goes over a new connection, however many idle ones have died, and the first gives way where the pool
// has no room for both.
func TestRepeatedAttemptsUseANewConnection(t *testing.T) {
	for _, limit := range []int{0, 25, 1} {
		synctest.Test(t, func(t *testing.T) {
			n, h := newNetwork(t)
			n.db.SetMaxOpenConns(limit)
			n.idle(t, max(1, limit))
			n.forget()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			first := make(chan error, 1)
			go func() {
				_, err := h.Lock(ctx, claim)
				first <- err
			}()
			time.Sleep(250 * time.Millisecond)
			second := claim
			second.Repeated = true
			_, err := h.Lock(ctx, second)
			require.NoError(t, err)
			require.Len(t, n.sent(), 1)
			if limit == 1 {
				err := <-first
				require.ErrorContains(t, err, "gave up its connection, which had been idle and did not answer")
				require.ErrorIs(t, err, context.Canceled)
				require.NotContains(t, err.Error(), "context canceled")
				require.True(t, loki.IsUnavailable(err))
			} else {
				require.ErrorIs(t, <-first, context.DeadlineExceeded, "it is left to its own")
			}
			require.Less(t, time.Since(time.Unix(946684800, 0)), 3*time.Second)
		})
	}
}

// A first attempt that has not had its turn is not silent, and nothing is discarded for it.
func TestQueueingIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.db.SetMaxOpenConns(2) // of which one acquires
		n.idle(t, 2)
		n.answers = make(chan struct{})
		other := claim
		other.Key, other.Token = "other", "other"
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = h.Lock(t.Context(), other) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		calls.Go(func() {
			_, err := h.Grant(ctx, claim)
			if err != nil {
				t.Error(err)
			}
		})
		time.Sleep(250 * time.Millisecond)
		calls.Go(func() {
			second := claim
			second.Repeated = true
			g, err := h.Grant(ctx, second)
			if err != nil || !g.Held {
				t.Error(err, "it is not the answer of the first")
			}
		})
		time.Sleep(100 * time.Millisecond)
		close(n.answers)
		calls.Wait()
		require.EqualValues(t, 2, n.made.Load())
		require.Len(t, n.sent(), 2)
	})
}

// However many callers there are, they share a few connections, and acquisitions leave renewals and releases theirs.
func TestFewConnectionsForManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.idle(t, 24)
		n.answers = make(chan struct{})
		var calls sync.WaitGroup
		for i := range 2000 {
			c := claim
			c.Key = fmt.Sprint(i)
			calls.Go(func() { _, _ = h.Lock(t.Context(), c) })
		}
		synctest.Wait()
		require.Equal(t, 16, n.db.Stats().InUse)
		for range 100 {
			calls.Go(func() { _, _ = h.Extend(t.Context(), claim) })
			calls.Go(func() { _ = h.Release(t.Context(), claim) })
		}
		synctest.Wait()
		require.Equal(t, 16+8, n.db.Stats().InUse)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := h.Lock(ctx, claim)
		require.NoError(t, ctx.Err(), "it says why before the caller stops listening")
		require.True(t, isNotSent(err))
		require.ErrorContains(t, err, "all places for acquisitions were taken all the time (this handler has 16 for acquisitions and 8 for renewals and releases")
		require.ErrorContains(t, err, "sql.DB.Stats: 24 open, 24 in use, 0 idle, no limit")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = h.Lock(ctx, claim)
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, isNotSent(err), "a caller that leaves the queue has nothing to roll back")
		close(n.answers)
		calls.Wait()
		require.LessOrEqual(t, n.most.Load(), int64(24))
	})
}

// The application has a transaction open, and the pool no other connection.
func TestAFullPoolIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h := newNetwork(t)
		n.db.SetMaxOpenConns(1)
		conn, err := n.db.Conn(t.Context())
		require.NoError(t, err)
		for op, send := range operations {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err = send(ctx, h)
			require.NoError(t, ctx.Err(), op)
			require.True(t, loki.IsUnavailable(err), op)
			require.Equal(t, recordsClaims(op), isNotSent(err), op)
			require.ErrorContains(t, err, "the pool had no connection free within 950ms (sql.DB.Stats: 1 open, 1 in use, 0 idle, SetMaxOpenConns 1, ", op)
			require.ErrorContains(t, err, "raise SetMaxOpenConns", op)
		}
		require.NoError(t, conn.Close())
		require.NoError(t, operations["extend"](t.Context(), h))
	})
}
