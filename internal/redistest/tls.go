package redistest

import (
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
	"time"
)

// Authority issues the certificates of a test.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that nobody trusts yet.
func NewAuthority(tb TB) *Authority {
	tb.Helper()
	a := &Authority{}
	a.key = newKey(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return a
}

// Pool is for a client or a server that trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue makes a certificate for a client, or for a server at 127.0.0.1.
func (a *Authority) Issue(tb TB, change ...func(*x509.Certificate)) tls.Certificate {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, f := range change {
		f(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey(tb TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return key
}

// StartTLS is [Start] for a server that speaks TLS alone, with a certificate, and asks its clients for one of the
// authority, unless the arguments say "--tls-auth-clients", "no". [Server.Client] makes clients that it accepts.
func StartTLS(tb TB, a *Authority, cert tls.Certificate, args ...string) *Server {
	tb.Helper()
	s := prepare(tb)
	s.tls = &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{a.Issue(tb)}} //nolint:gosec // to tests
	files := map[string]*pem.Block{
		"--tls-ca-cert-file": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"--tls-cert-file":    {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	files["--tls-key-file"] = &pem.Block{Type: "PRIVATE KEY", Bytes: key}
	for arg, block := range files {
		file := filepath.Join(s.dir, arg[2:])
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		s.args = append(s.args, arg, file)
	}
	s.args = append(s.args, args...)
	s.start(tb)
	return s
}
