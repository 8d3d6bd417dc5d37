package loki_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestIsUnavailable(t *testing.T) {
	version := alert(t, &tls.Config{MinVersion: tls.VersionTLS13})
	internal := alert(t, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return nil, errors.New("no server behind the proxy")
	}})
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                  {nil, false},
		"a permanent error":        {errors.New("no such table"), false},
		"one that is marked":       {fmt.Errorf("wrapped: %w", loki.Unavailable(errors.New("loading"))), true},
		"refused":                  {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		"reset":                    {fmt.Errorf("wrapped: %w", &net.OpError{Op: "read", Err: syscall.ECONNRESET}), true},
		"cut":                      {io.ErrUnexpectedEOF, true},
		"no answer":                {context.DeadlineExceeded, true},
		"a TLS alert":              {fmt.Errorf("wrapped: %w", version), false},
		"a TLS alert, marked":      {loki.Unavailable(version), true},
		"of a proxy, by its alert": {internal, true},

		"no certificate of ours, over HTTPS": {&url.Error{Op: "Post", URL: "https://store/", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, false},
		"refused, over HTTPS":                {&url.Error{Op: "Post", URL: "https://store/", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, true},
		"cut, over HTTPS":                    {&url.Error{Op: "Post", URL: "https://store/", Err: errors.New("http: server closed idle connection")}, true},
		"an address without a port":          {&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address", Addr: "redis"}}, false},
		"a network that is none":             {&net.OpError{Op: "dial", Err: net.UnknownNetworkError("tpc")}, false},
		"a file without permission":          {&fs.PathError{Op: "open", Path: "/var/lock/job", Err: syscall.EACCES}, false},
		"no such folder":                     {&fs.PathError{Op: "open", Path: "/var/lock/job", Err: syscall.ENOENT}, false},
		"a socket without permission":        {&net.OpError{Op: "dial", Net: "unix", Err: syscall.EACCES}, false},
		"no socket yet":                      {&net.OpError{Op: "dial", Net: "unix", Err: syscall.ENOENT}, true},
	} {
		require.Equal(t, c.want, loki.IsUnavailable(c.err), "%s: %v", name, c.err)
	}
}

// An error of a request that was not sent is an outage of its store, and still the error that it was.
func TestNotSent(t *testing.T) {
	require.NoError(t, loki.NotSent(nil))
	full := errors.New("the pool is full")
	err := loki.NotSent(full)
	require.ErrorIs(t, err, full)
	require.EqualError(t, err, full.Error())
	require.True(t, loki.IsUnavailable(err))
	require.True(t, loki.IsUnavailable(fmt.Errorf("wrapped: %w", err)))
}

// alert returns what a client gets that a server refuses in the handshake.
func alert(t *testing.T, server *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	go func() {
		defer func() { _ = far.Close() }()
		_ = tls.Server(far, server).HandshakeContext(context.WithoutCancel(t.Context())) // it is to fail
	}()
	err := tls.Client(near, &tls.Config{ServerName: "host", MaxVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
	require.ErrorContains(t, err, "remote error: tls: ")
	return err
}
