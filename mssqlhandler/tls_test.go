package mssqlhandler_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/mssqlhandler"
)

// connect sends each operation, and the questions of Check, to a server by a data source name, and returns an error of each.
func connect(t *testing.T, address string, parameters url.Values) map[string]error {
	t.Helper()
	dsn := (&url.URL{Scheme: "sqlserver", User: url.UserPassword("sa", "s3cret"), Host: address, RawQuery: parameters.Encode()}).String()
	h, err := mssqlhandler.Open(dsn)
	require.NoError(t, err)
	db, err := sqlx.Open("sqlserver", dsn)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	errs := map[string]error{"check": mssqlhandler.Check(ctx, db)}
	for op, send := range operations {
		errs[op] = send(ctx, h)
	}
	require.NoError(t, db.Close())
	require.NoError(t, h.Close())
	return errs
}

func TestTLSThatDoesNotFitIsPermanent(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	soon := time.Now().Add(time.Hour)
	inside := func(c tls.Certificate) gatekeeper {
		return gatekeeper{encryption: encryptionRequired, tls: &tls.Config{Certificates: []tls.Certificate{c}, MaxVersion: tls.VersionTLS12, SessionTicketsDisabled: true}}
	}
	strict := func(change func(*tls.Config)) gatekeeper {
		config := &tls.Config{Certificates: []tls.Certificate{ours.issue(t, "db", soon)}, NextProtos: []string{"tds/8.0"}}
		change(config)
		return gatekeeper{strict: true, tls: config}
	}
	trusting := url.Values{"encrypt": {"true"}, "certificate": {ours.file}, "hostnameincertificate": {"db"}}
	strictly := url.Values{"encrypt": {"strict"}, "certificate": {ours.file}, "hostnameincertificate": {"db"}}
	const (
		certificate = "the server's certificate is not accepted: see certificate, hostNameInCertificate and TrustServerCertificate"
		disagree    = "do not agree on TLS: see encrypt and tlsmin"
		noServer    = "what answers is not a SQL Server"
	)
	for name, c := range map[string]struct {
		server       gatekeeper
		parameters   url.Values
		advice, says string
	}{
		"another authority":   {inside(theirs.issue(t, "db", soon)), trusting, certificate, "unknown authority"},
		"no authority":        {inside(ours.issue(t, "db", soon)), url.Values{"encrypt": {"true"}}, certificate, "x509"},
		"another name":        {inside(ours.issue(t, "elsewhere", soon)), trusting, certificate, "not db"},
		"expired":             {inside(ours.issue(t, "db", time.Now().Add(-time.Hour))), trusting, certificate, "expired"},
		"encrypt=disable":     {inside(ours.issue(t, "db", soon)), url.Values{"encrypt": {"disable"}}, certificate, "x509"},
		"version":             {inside(ours.issue(t, "db", soon)), url.Values{"encrypt": {"true"}, "trustservercertificate": {"true"}, "tlsmin": {"1.3"}}, disagree, "version"},
		"the server has none": {gatekeeper{encryption: encryptionNone}, url.Values{"encrypt": {"true"}}, disagree, "does not support encryption"},

		"strict, another authority":       {strict(func(c *tls.Config) { c.Certificates = []tls.Certificate{theirs.issue(t, "db", soon)} }), strictly, certificate, "unknown authority"},
		"strict, another name":            {strict(func(*tls.Config) {}), url.Values{"encrypt": {"strict"}, "certificate": {ours.file}}, certificate, "127.0.0.1"},
		"strict, asked for a certificate": {strict(func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }), strictly, disagree, "certificate required"},
		"strict, asked for a certificate with TLS 1.2": {strict(func(c *tls.Config) {
			c.ClientAuth, c.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12
		}), strictly, disagree, "remote error: tls: "},

		"strict, to a server without": {gatekeeper{greeting: []byte("220 mail ready\r\n")}, strictly, disagree, "first record does not look like a TLS handshake"},

		"no SQL Server": {gatekeeper{greeting: []byte("-ERR unknown command\r\n")}, url.Values{"encrypt": {"disable"}}, noServer, "packet size"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.Start(t, c.server.start(t))
			proxy.Delay(15 * time.Millisecond)
			for op, err := range connect(t, proxy.Addr(), c.parameters) {
				require.ErrorContains(t, err, c.advice, op)
				require.ErrorContains(t, err, c.says, op)
				require.NotContains(t, err.Error(), "s3cret", op)
				require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
			}
		})
	}
}

// A connection that is cut may be a load balancer without servers, and may be a server that has no such TLS.
//
// https://github.com/livekit/livekit/issues/470
func TestTLSThatIsCutIsAnOutageAndSaysWhatElseItMayBe(t *testing.T) {
	authority := newAuthority(t)
	for name, c := range map[string]struct {
		server        gatekeeper
		encrypt, says string
	}{
		"strict, to a server without": {gatekeeper{encryption: encryptionNone}, "strict", "(encrypt=strict needs SQL Server 2022)"},
		"cut":                         {gatekeeper{encryption: encryptionRequired}, "true", "it is down behind what answers for it"},
		"the proxy has no server": {gatekeeper{strict: true, tls: &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, errors.New("no server")
		}}}, "strict", "it is down behind what answers for it"},
		"not strict, to a server that is": {gatekeeper{strict: true, tls: &tls.Config{
			Certificates: []tls.Certificate{authority.issue(t, "db", time.Now().Add(time.Hour))},
		}}, "disable", "takes no connection without encrypt=strict"},
	} {
		for op, err := range connect(t, c.server.start(t), url.Values{"encrypt": {c.encrypt}}) {
			require.True(t, loki.IsUnavailable(err), "%s: %s: %v", name, op, err)
			require.ErrorContains(t, err, c.says, "%s: %s", name, op)
		}
	}
}

// The errors that a login gets are those of the driver, from a connection that is none.
func TestRefusedLogins(t *testing.T) {
	for _, c := range []struct {
		numbers     []int32
		advice      string
		unavailable bool
	}{
		{[]int32{18456}, "see the user and the password", false},
		{[]int32{18452}, "see the user and the password", false},
		{[]int32{18488}, "see the user and the password", false},
		{[]int32{4060, 18456}, "the name in the data source name is wrong", false},
		{[]int32{916}, "no such database for this login", false},
		{[]int32{40532}, "see its firewall's rules", false},
		{[]int32{40615}, "see its firewall's rules", false},
		{[]int32{976}, "by the availability group's listener", true},
		{[]int32{978}, "without ApplicationIntent=ReadOnly", true},
		{[]int32{40613}, "refused", true},
		{[]int32{18401}, "refused", true},
	} {
		t.Run(fmt.Sprint(c.numbers), func(t *testing.T) {
			t.Parallel()
			for op, err := range connect(t, gatekeeper{encryption: encryptionNone, refusals: c.numbers}.start(t), nil) {
				require.ErrorContains(t, err, c.advice, op)
				require.Equal(t, c.unavailable, loki.IsUnavailable(err), "%s: %v", op, err)
				requireNumber(t, c.numbers[len(c.numbers)-1], err)
			}
		})
	}
}

func requireNumber(t *testing.T, number int32, err error) {
	t.Helper()
	var server mssql.Error
	require.ErrorAs(t, err, &server)
	require.Equal(t, number, server.Number)
}
