package redishandler_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// handshake is a client and a server that do not agree on TLS.
type handshake struct {
	server *redistest.Server
	change func(*redis.Options) // of a client that trusts the server and has no certificate
	text   string               // of the permanent error
}

// handshakes returns every way in which TLS can be set up wrongly, and a change for a client that has it right.
func handshakes(t *testing.T) (wrong map[string]handshake, right func(*redis.Options)) {
	ours, theirs := redistest.NewAuthority(t), redistest.NewAuthority(t)
	asks := redistest.StartTLS(t, ours, ours.Issue(t))
	plain := redistest.StartTLS(t, ours, ours.Issue(t), "--tls-auth-clients", "no")
	expired := redistest.StartTLS(t, ours, ours.Issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "--tls-auth-clients", "no")
	right = func(o *redis.Options) { o.TLSConfig = &tls.Config{RootCAs: ours.Pool()} } //nolint:gosec // the default is to be tested
	change := func(f func(*tls.Config)) func(*redis.Options) {
		return func(o *redis.Options) {
			right(o)
			f(o.TLSConfig)
		}
	}
	return map[string]handshake{
		"no client certificate":             {asks, right, "certificate required"},
		"no client certificate, in TLS 1.2": {asks, change(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), "handshake failure"},
		"a client certificate of another authority": {asks, change(func(c *tls.Config) { c.Certificates = []tls.Certificate{theirs.Issue(t)} }),
			"unknown certificate authority"},
		"a server certificate of another authority": {plain, change(func(c *tls.Config) { c.RootCAs = theirs.Pool() }), "signed by unknown authority"},
		"another host name":                         {plain, change(func(c *tls.Config) { c.ServerName = "redis.example" }), "redis.example"},
		"an expired certificate":                    {expired, right, "has expired"},
	}, right
}

func TestATLSHandshakeThatWillFailAgainIsAPermanentError(t *testing.T) {
	t.Parallel()
	wrong, right := handshakes(t)
	for name, c := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for call, do := range calls(redishandler.New(c.server.Client(t, c.change)), claim("k", time.Minute)) {
				err := do(t.Context())
				requireMistake(t, err, c.text)
				require.ErrorContains(t, err, "check", call)
			}
		})
	}
	t.Run("right", func(t *testing.T) {
		held, err := redishandler.New(wrong["another host name"].server.Client(t, right)).Lock(t.Context(), claim("k", time.Minute))
		require.NoError(t, err)
		require.True(t, held)
	})
}

// https://github.com/livekit/livekit/issues/470
func TestAClientWithoutTLSAtATLSPortIsAnOutageWithAHint(t *testing.T) {
	t.Parallel()
	a := redistest.NewAuthority(t)
	server := redistest.StartTLS(t, a, a.Issue(t))
	_, err := redishandler.New(server.Client(t, func(o *redis.Options) { o.TLSConfig = nil })).Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "TLSConfig")
}

// A server does not answer at all then: it waits for the end of what it takes for a command.
func TestCheckFindsAServerWithoutTLS(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	withTLS := func(o *redis.Options) { o.TLSConfig = &tls.Config{ServerName: "redis"} } //nolint:gosec // the default is to be tested
	requireFault(t, redishandler.Check(t.Context(), server.Client(t, withTLS)), "does not speak TLS")
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret").Err())
	requireFault(t, redishandler.Check(t.Context(), server.Client(t, withTLS)), "does not speak TLS")

	a := redistest.NewAuthority(t)
	requireAdvice(t, redishandler.Check(t.Context(), redistest.StartTLS(t, a, a.Issue(t)).Client(t)), "appendonly")
}

// With go-redis's default settings a client dials five times before it gives up, which takes longer than a call may.
func TestATLSHandshakeThatWillFailAgainIsFoundWithinACall(t *testing.T) {
	t.Parallel()
	wrong, _ := handshakes(t)
	for name, c := range wrong {
		for _, latency := range []time.Duration{0, 15 * time.Millisecond, 40 * time.Millisecond} {
			t.Run(fmt.Sprint(name, ", ", latency), func(t *testing.T) {
				proxy := faultproxy.Start(t, c.server.Addr())
				proxy.Delay(latency)
				var last error
				require.Eventually(t, func() bool { // a busy machine may take longer than a call may
					last = callOnce(t, c.server.Client(t, c.change, func(o *redis.Options) { o.Addr = proxy.Addr() }))
					return !errors.Is(last, loki.ErrUnavailable)
				}, failoverPatience, time.Millisecond)
				requireMistake(t, last, c.text)
			})
		}
	}
}

// callOnce asks a Locker with default settings for a lock, and ends what is left of it: the client, too.
func callOnce(t *testing.T, client *redis.Client) error {
	locker, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(client)).Build()
	require.NoError(t, err)
	err = locker.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil })
	_ = client.Close() // an error where the server has closed the connection first
	require.NoError(t, locker.Close(context.WithoutCancel(t.Context())))
	return err
}
