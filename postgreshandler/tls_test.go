package postgreshandler_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	a := authority{cert: &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}}
	a.pem, _, a.cert, a.key = sign(t, a.cert, a.cert, nil)
	return a
}

// issue returns a certificate for a host, or a user, and its key.
func (a authority) issue(t *testing.T, name string, expires time.Time) (cert, key string) {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: expires}
	cert, key, _, _ = sign(t, template, a.cert, a.key)
	return cert, key
}

func sign(t *testing.T, template, parent *x509.Certificate, by *ecdsa.PrivateKey) (cert, key string, parsed *x509.Certificate, own *ecdsa.PrivateKey) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if by == nil {
		by = own
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-48 * time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, by)
	require.NoError(t, err)
	parsed, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	bytes, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes})), parsed, own
}

// file writes a file of the client's.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestTLSAndLoginsThatAreSetUpWrongAreNoOutage(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	s := newStoreOn(t, server)
	server.Exec(t, "CREATE ROLE secret LOGIN PASSWORD 'right'")
	trusted, other := newAuthority(t, "trusted"), newAuthority(t, "other")
	ca := "sslrootcert=" + file(t, trusted.pem)
	configure := func(host string, expires time.Time) {
		cert, key := trusted.issue(t, host, expires)
		server.WriteFile(t, "server.crt", cert)
		server.WriteFile(t, "server.key", key)
		server.WriteFile(t, "ca.crt", trusted.pem)
		server.WriteFile(t, "pg_hba.conf", `host all postgres 127.0.0.1/32 trust
host all secret 127.0.0.1/32 scram-sha-256
hostssl all encrypted 127.0.0.1/32 trust
hostssl all certified 127.0.0.1/32 cert
host all refused 127.0.0.1/32 reject
`)
		server.Restart(t)
	}
	server.Exec(t, "CREATE ROLE encrypted LOGIN", "CREATE ROLE certified LOGIN", "CREATE ROLE refused LOGIN")
	requirePermanent := func(says string, params ...string) {
		t.Helper()
		misconfigured := s.open(t, params...)
		require.ErrorContains(t, misconfigured.anyError(t), says)
		_, err := misconfigured.Notify(t.Context(), "k")
		require.ErrorContains(t, err, says)
		require.False(t, loki.IsUnavailable(err))
		err = postgreshandler.Check(t.Context(), misconfigured.db, s.opts...)
		require.ErrorContains(t, err, says)
		require.False(t, loki.IsUnavailable(err))
	}

	requirePermanent("does not offer TLS", "sslmode=require")
	// In TLS 1.3 a client may see a reset before it has read why its certificate is refused.
	server.Exec(t, "ALTER SYSTEM SET ssl_max_protocol_version = 'TLSv1.2'", "ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET ssl_ca_file = 'ca.crt'")
	configure("localhost", time.Time{})
	s.open(t, "host=localhost", "sslmode=verify-full", ca).EveryOperation(t)
	requirePermanent("is not trusted: see sslrootcert", "host=localhost", "sslmode=verify-full", "sslrootcert="+file(t, other.pem))
	requirePermanent("is not trusted: see sslrootcert", "host=localhost", "sslmode=verify-full")
	requirePermanent("is for another name", "sslmode=verify-full", ca)
	requirePermanent("sslmode and sslcert, and the server's pg_hba.conf", "user=encrypted")
	requirePermanent("sslmode and sslcert, and the server's pg_hba.conf", "user=certified", "sslmode=require")
	forged := newAuthority(t, "trusted") // Go sends none of an issuer that the server does not ask for
	strange, key := forged.issue(t, "certified", time.Time{})
	requirePermanent("refuses this client's certificate", "user=certified", "sslmode=require", "sslcert="+file(t, strange), "sslkey="+file(t, key))
	requirePermanent("does not take this password", "user=secret", "password=wrong")
	requirePermanent("does not let this login in", "user=refused")
	requirePermanent("does not let this login in", "user=nobody")
	requirePermanent("no such database", "dbname=nowhere")

	configure("localhost", time.Now().Add(-time.Hour))
	requirePermanent("has expired", "host=localhost", "sslmode=verify-full", ca)
}
