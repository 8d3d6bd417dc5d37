package redishandler_test

// This file is the ways to reach a server, and the settings that a client may have.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// certificate writes a self-made certificate for 127.0.0.1 and its key, and returns a pool with it.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certFile, certPEM, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	pool = x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certPEM))
	return certFile, keyFile, pool
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// goThrough is each operation once, with somebody who waits.
func (f *fixture) goThrough() {
	f.t.Helper()
	a, b := mirrored(claim("k", time.Minute)), claim("k", time.Minute)
	f.mustHold(a)
	told, err := f.handler.Notify(f.t.Context(), "k")
	require.NoError(f.t, err)
	f.mustBeBusy(b)
	require.True(f.t, f.extend(a))
	holder, held, err := f.handler.Inspect(f.t.Context(), "k")
	require.NoError(f.t, err)
	require.True(f.t, held)
	require.Equal(f.t, a.Holder, holder.ID)
	f.release(a)
	requireTold(f.t, told)
	require.Equal(f.t, a.Token, f.mustHold(b).Released)
	f.release(b)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certFile, keyFile, pool := certificate(t)
	addr := freeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	server := redistest.Start(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
		"--tls-ca-cert-file", certFile, "--tls-auth-clients", "no")
	client := func(pool *x509.CertPool) *redis.Client {
		return server.Client(t, noWait, func(o *redis.Options) {
			o.Addr, o.DialerRetries = addr, 1
			o.TLSConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		})
	}
	f := &fixture{t: t, server: server, redis: server.Client(t), handler: redishandler.New(client(pool))}
	f.goThrough()

	_, err := redishandler.New(client(x509.NewCertPool())).Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "certificate")
}

func TestAUnixSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "") //nolint:usetesting // t.TempDir's may be too long for a socket's name
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "redis.sock")
	server := redistest.Start(t, "--unixsocket", socket)
	client := server.Client(t, noWait, func(o *redis.Options) { o.Network, o.Addr, o.DialerRetries = "unix", socket, 1 })
	f := &fixture{t: t, server: server, redis: server.Client(t), handler: redishandler.New(client)}
	f.goThrough()

	server.Kill()
	require.NoError(t, os.RemoveAll(socket))
	_, err = f.handler.Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, socket)
}

// Whatever a client is set to, it does, and it is the same afterwards.
func TestClientsOfAnySettings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, change := range map[string]func(o *redis.Options){
		"defaults":   func(*redis.Options) {},
		"no retries": noWait,
		"many retries": func(o *redis.Options) {
			o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 20, time.Microsecond, time.Millisecond
		},
		"timeouts by ctx":     func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"no timeouts":         func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
		"two connections":     func(o *redis.Options) { o.PoolSize, o.MinIdleConns, o.PoolFIFO = 2, 1, true },
		"another database":    func(o *redis.Options) { o.DB = 3 },
		"a name and RESP2":    func(o *redis.Options) { o.ClientName, o.Protocol, o.DisableIdentity = "billing", 2, true },
		"short-lived":         func(o *redis.Options) { o.ConnMaxLifetime, o.ConnMaxIdleTime = time.Millisecond, time.Millisecond },
		"small buffers":       func(o *redis.Options) { o.ReadBufferSize, o.WriteBufferSize = 64, 64 },
		"a pool of pipelines": func(o *redis.Options) { o.PipelineReadBufferSize, o.PipelinePoolSize = 1024, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			client := f.server.Client(t, change)
			var seen counting
			client.AddHook(&seen)
			g := *f
			g.t, g.handler = t, redishandler.New(client)
			g.goThrough()
			require.Positive(t, seen.Load(), "the client's hooks see what is sent")
			require.NoError(t, client.Set(t.Context(), "its owner's", "v", 0).Err())
		})
	}
	universal := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{f.server.Addr()}})
	defer func() { require.NoError(t, universal.Close()) }()
	f.handler = redishandler.New(universal)
	f.goThrough()
}

// counting is a hook that counts commands, as tracing does.
type counting struct{ atomic.Int64 }

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

// Seen: one registration was stopped, and closed the store that the others used.
func TestCase095_ALockerThatClosesLeavesTheSharedClientOpen(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t)
	locker := func(key string) *loki.Locker {
		l, err := loki.NewBuilder().SetServiceKey(key).SetPrimaryLockHandler(redishandler.New(client)).Build()
		require.NoError(t, err)
		return l
	}
	first, second := locker("first"), locker("second")
	ran := 0
	work := func(context.Context) error { ran++; return nil }
	require.NoError(t, first.ExecuteWithinLock(t.Context(), time.Minute, work))
	require.NoError(t, first.Close(t.Context()))
	require.NoError(t, second.ExecuteWithinLock(t.Context(), time.Minute, work))
	require.NoError(t, second.Close(t.Context()))
	require.Equal(t, 2, ran)
	require.NoError(t, client.Ping(t.Context()).Err())
}
