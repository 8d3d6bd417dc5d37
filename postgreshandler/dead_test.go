package postgreshandler_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
)

// timeout is that of a secondary by default. That of a primary, 500 ms, would fail a busy machine that needs half of it for
// a new connection.
const timeout = 3 * time.Second

// nat is a store whose connections go through a proxy that can forget them.
type nat struct {
	*store
	*faultproxy.Proxy
}

// behindNAT makes the pool with open from a data source name that leads through the proxy.
func behindNAT(t *testing.T, s *store, open func(t *testing.T, dsn string) *sql.DB) nat {
	t.Helper()
	proxy := faultproxy.Start(t, fmt.Sprintf("127.0.0.1:%d", s.server.Port()))
	_, port, err := net.SplitHostPort(proxy.Addr())
	require.NoError(t, err)
	db := open(t, s.server.DSN("port="+port))
	t.Cleanup(func() { _ = db.Close() })
	return nat{s.on(db), proxy}
}

// pools are those that people make.
var pools = map[string]func(t *testing.T, dsn string) *sql.DB{
	"pgx": func(t *testing.T, dsn string) *sql.DB { return openDB(t, "pgx", dsn) },
	"pgx, 25 idle": func(t *testing.T, dsn string) *sql.DB {
		db := openDB(t, "pgx", dsn)
		db.SetMaxIdleConns(25)
		return db
	},
	"pgx, 2 at most": func(t *testing.T, dsn string) *sql.DB {
		db := openDB(t, "pgx", dsn)
		db.SetMaxOpenConns(2)
		return db
	},
	"pgx, 1 at most": func(t *testing.T, dsn string) *sql.DB {
		db := openDB(t, "pgx", dsn)
		db.SetMaxOpenConns(1)
		return db
	},
	"unasked": func(t *testing.T, dsn string) *sql.DB { // as Open has it: only a statement finds a dead connection
		config, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
		db.SetMaxIdleConns(25)
		return db
	},
	"wrapped": func(t *testing.T, dsn string) *sql.DB {
		register()
		return openDB(t, "traced-pgx", dsn)
	},
	"pgxpool": func(t *testing.T, dsn string) *sql.DB {
		pool, err := pgxpool.New(t.Context(), dsn+" pool_max_conns=30")
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return stdlib.OpenDBFromPool(pool)
	},
}

func openDB(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	return db
}

// fill leaves as many idle connections in the pool as it keeps, of n that are used at once, and lets them be idle for
// longer than pgx takes them for alive unasked.
func (n nat) fill(t *testing.T, connections int) {
	t.Helper()
	var conns []*sql.Conn
	for range connections {
		conn, err := n.db.Conn(within(t, 200*time.Millisecond))
		if err != nil {
			break // the pool has no more
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	time.Sleep(1100 * time.Millisecond) // it is the age of a connection that matters
}

// twice makes a call as the Locker does: a second attempt beside the first when that has been silent for a quarter of
// the time, and the first answer counts.
func twice(t *testing.T, limit time.Duration, c loki.Claim, send func(context.Context, loki.Claim) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	answers := make(chan error, 2)
	attempt := func(c loki.Claim) { answers <- send(ctx, c) }
	go attempt(c)
	second := time.After(limit / 4)
	for sent, answered := 1, 0; ; {
		select {
		case err := <-answers:
			if answered++; err == nil || answered == sent {
				return err
			}
		case <-second:
			sent++
			c.Repeated = true
			go attempt(c)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n nat) lock(ctx context.Context, c loki.Claim) error {
	held, err := n.Lock(ctx, c)
	if err == nil && !held {
		return loki.ErrBusy
	}
	return err
}

func (n nat) extend(ctx context.Context, c loki.Claim) error {
	held, err := n.Extend(ctx, c)
	if err == nil && !held {
		return loki.ErrNotHeld
	}
	return err
}

// A NAT or a firewall forgets connections that were idle, all of them, and says nothing. However many there are, a call is
// answered within its time.
//
// https://github.com/redis/go-redis/issues/941
func TestConnectionsThatDiedInSilence(t *testing.T) {
	t.Parallel()
	// The server never learns that a connection is gone.
	s := newStoreOn(t, postgrestest.Start(t, "-c", "max_connections=800"))
	for name, open := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := behindNAT(t, s, open)
			c, idle := s.Claim(name), 8
			if name == "pgxpool" {
				idle = 3 // each has a place in that pool for 15 s after it was found dead
			}
			for range 2 {
				for _, send := range []func(context.Context, loki.Claim) error{n.lock, n.extend, n.Release} {
					n.fill(t, idle)
					n.Forget()
					require.NoError(t, twice(t, timeout, c, send))
				}
			}
		})
	}
}

// The Locker does it by itself: as a primary and as a secondary, with a wait, and for a lease that is renewed.
func TestLockerOverConnectionsThatDiedInSilence(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, postgrestest.Start(t, "-c", "max_connections=800"))
	down := lokitest.NewFaults(memhandler.New())
	for _, op := range []lokitest.Op{lokitest.OpLock, lokitest.OpExtend, lokitest.OpRelease, lokitest.OpNotify} {
		down.Set(op, lokitest.Fault{Err: loki.Unavailable(errors.New("the primary is down"))})
	}
	for name, build := range map[string]func(n nat, b *loki.Builder) *loki.Builder{
		"primary": func(n nat, b *loki.Builder) *loki.Builder { return b.SetPrimaryLockHandler(n) },
		"secondary": func(n nat, b *loki.Builder) *loki.Builder {
			return b.SetPrimaryLockHandler(down).SetSecondaryLockHandler(n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := behindNAT(t, s, pools["pgx, 25 idle"])
			l, err := build(n, loki.NewBuilder().SetServiceKey(name).SetPrimaryTimeout(timeout).SetSecondaryTimeout(timeout)).Build()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) })
			for i, opts := range [][]loki.Option{nil, {loki.WithWait(time.Minute)}, nil, nil, nil, nil} {
				n.fill(t, 8)
				n.Forget()
				begun := time.Now()
				err := l.ExecuteWithinLock(t.Context(), 10*time.Second, nothing, opts...)
				require.NoError(t, err, "call %d", i)
				require.Less(t, time.Since(begun), timeout)
			}
			end := hold(t, l, 6*time.Second)
			for range 3 { // renewals, every two seconds
				n.fill(t, 8)
				n.Forget()
				time.Sleep(time.Second) // until the next
			}
			require.NoError(t, end())
		})
	}
}

// The connection that listens dies with the others. Whoever listens is notified within seconds, although none of the pool's
// connections answers.
func TestNotify_AConnectionThatDiedInSilence(t *testing.T) {
	t.Parallel()
	s := newStoreOn(t, postgrestest.Start(t), postgreshandler.WithPatience(50*time.Millisecond, time.Second, 10*time.Second))
	n := behindNAT(t, s, pools["pgx, 25 idle"])
	notified, _ := n.listen(t, "job")
	n.fill(t, 8)
	n.Forget()
	requireTold(t, notified)
	c := s.Claim("job")
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	requireTold(t, notified)
}
