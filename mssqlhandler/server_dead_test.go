package mssqlhandler_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/mssqlhandler"
)

// behindNAT returns a store whose connections go through a proxy that can forget them.
func behindNAT(t *testing.T) (*store, *faultproxy.Proxy) {
	t.Helper()
	s := newStore(t)
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "1433")
	}
	proxy := faultproxy.Start(t, u.Host)
	u.Host = proxy.Addr()
	db, err := sqlx.Open("sqlserver", u.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	s.use(db, mssqlhandler.WithTable(s.table))
	return s, proxy
}

// unreachable is a primary that is.
type unreachable struct{}

var errUnreachable = loki.Unavailable(errors.New("unreachable"))

func (unreachable) Lock(context.Context, loki.Claim) (bool, error) { return false, errUnreachable }
func (unreachable) Release(context.Context, loki.Claim) error      { return errUnreachable }

// A NAT or a firewall forgets the connections that were idle, all of them, and says nothing. A job that runs every few
// minutes meets a pool of those each time, and runs.
//
// https://github.com/redis/go-redis/issues/941
func TestServerJobBehindANATThatForgets(t *testing.T) {
	t.Parallel()
	// A server that only speaks T-SQL may take seconds for what is new to a connection, on a busy machine. A quarter of this
	// has to be more than that, or the repetition of a slow call closes the connection that was about to answer.
	const limit = 30 * time.Second
	for name, with := range map[string]func(*loki.Config, loki.LockHandler){
		"as primary":   func(c *loki.Config, h loki.LockHandler) { c.Primary = h },
		"as secondary": func(c *loki.Config, h loki.LockHandler) { c.Primary, c.Secondary = unreachable{}, h },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, proxy := behindNAT(t)
			config := loki.Config{ServiceKey: s.Prefix + "job", PrimaryTimeout: limit, SecondaryTimeout: limit}
			with(&config, s.Handler)
			locker, err := loki.New(config)
			require.NoError(t, err)
			defer func() { require.NoError(t, locker.Close(context.WithoutCancel(t.Context()))) }()
			for range 3 {
				s.db.SetMaxIdleConns(connections)
				fill(t, s.db, connections)
				proxy.Forget()
				ran := false
				require.NoError(t, locker.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					ran = true
					return nil
				}))
				require.True(t, ran)
			}
			require.Zero(t, s.Count(t), "each release went over a connection that lives")
		})
	}
}
