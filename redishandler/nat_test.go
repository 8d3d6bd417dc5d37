package redishandler_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/faultproxy"
)

// nat stands between a client and all servers that it dials.
type nat struct {
	t *testing.T

	mu      sync.Mutex
	proxies map[string]*faultproxy.Proxy // by the address behind it
}

func newNAT(t *testing.T) *nat { return &nat{t: t, proxies: make(map[string]*faultproxy.Proxy)} }

// dial is for a client's Dialer.
func (n *nat) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, n.to(addr).Addr())
}

func (n *nat) to(addr string) *faultproxy.Proxy {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proxies[addr] == nil {
		n.proxies[addr] = faultproxy.Start(n.t, addr)
	}
	return n.proxies[addr]
}

// forget drops all connections that exist now, in silence.
func (n *nat) forget() { n.each((*faultproxy.Proxy).Forget) }

// reset answers with a reset instead.
func (n *nat) reset() { n.each((*faultproxy.Proxy).Reset) }

func (n *nat) each(do func(*faultproxy.Proxy)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, proxy := range n.proxies {
		do(proxy)
	}
}

// connections is how many there are, to all servers.
func (n *nat) connections() (count int) {
	n.each(func(p *faultproxy.Proxy) { count += p.Connections() })
	return count
}

// natted has the fixture's handler behind a NAT. The client is as it comes, but for change.
func (f *fixture) natted(change ...func(*redis.Options)) (*nat, *redis.Client) {
	n := newNAT(f.t)
	client := f.server.Client(f.t, append(change, func(o *redis.Options) { o.Dialer = n.dial })...)
	return n, client
}

// fill opens n connections and leaves them idle in the client's pool.
func fill(t *testing.T, client *redis.Client, n int) {
	t.Helper()
	conns := make([]*redis.Conn, n)
	for i := range conns {
		conns[i] = client.Conn()
		require.NoError(t, conns[i].Ping(t.Context()).Err())
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.EqualValues(t, n, client.PoolStats().IdleConns)
}
