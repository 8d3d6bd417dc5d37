package mssqlhandler_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

// Types of TDS packets, and what a server may say of encryption.
const (
	packetReply, packetLogin, packetPrelogin = 4, 16, 18

	encryptionNone, encryptionOff, encryptionRequired = 2, 0, 3
)

// gatekeeper is as much of a SQL Server as there is before a login has succeeded.
type gatekeeper struct {
	encryption byte        // its answer to the question whether to encrypt
	tls        *tls.Config // for the handshake inside of TDS, or with strict around it
	strict     bool
	greeting   []byte  // instead of all that
	refusals   []int32 // the numbers of the errors that a login gets
}

// start returns the server's address.
func (g gatekeeper) start(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = g.serve(t.Context(), conn) // what went wrong is for the client to tell
			}()
		}
	}()
	return listener.Addr().String()
}

func (g gatekeeper) serve(ctx context.Context, conn net.Conn) error {
	if g.strict {
		conn = tls.Server(conn, g.tls)
	}
	kind, _, err := readPacket(conn)
	switch {
	case err != nil:
		return err
	case g.greeting != nil:
		_, err = conn.Write(g.greeting)
		return err
	case kind != packetPrelogin:
		return nil // what a server does with a handshake that it does not expect
	}
	if err := writePacket(conn, packetReply, []byte{1, 0, 6, 0, 1, 0xff, g.encryption}); err != nil {
		return err
	}
	if g.tls != nil && !g.strict {
		return tls.Server(&packets{Conn: conn}, g.tls).HandshakeContext(ctx) // the login goes through the tunnel, which this server does not
	}
	if kind, _, err := readPacket(conn); err != nil || kind != packetLogin {
		return err // a server that is down behind its balancer is gone when the handshake begins
	}
	var reply []byte
	for _, number := range g.refusals {
		message := utf16.Encode([]rune("refused"))
		token := binary.LittleEndian.AppendUint32(nil, uint32(number))
		token = append(token, 1, 14) // state, class
		token = binary.LittleEndian.AppendUint16(token, uint16(len(message)))
		for _, unit := range message {
			token = binary.LittleEndian.AppendUint16(token, unit)
		}
		token = append(token, 0, 0, 1, 0, 0, 0) // no server, no procedure, line 1
		reply = append(binary.LittleEndian.AppendUint16(append(reply, 0xaa), uint16(len(token))), token...)
	}
	return writePacket(conn, packetReply, append(reply, slices.Concat([]byte{0xfd, 2, 0}, make([]byte, 10))...))
}

func readPacket(r io.Reader) (kind byte, packet []byte, err error) {
	header := make([]byte, 8)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, nil, err
	}
	packet = make([]byte, max(0, int(binary.BigEndian.Uint16(header[2:]))-len(header)))
	if header[0] == packetPrelogin || header[0] == packetLogin {
		_, err = io.ReadFull(r, packet)
	}
	return header[0], packet, err
}

func writePacket(w io.Writer, kind byte, packet []byte) error {
	header := []byte{kind, 1, 0, 0, 0, 0, 1, 0}
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(packet)))
	_, err := w.Write(append(header, packet...))
	return err
}

// packets is a connection whose bytes are in TDS packets, as those of a handshake are.
type packets struct {
	net.Conn
	in bytes.Reader
}

func (p *packets) Read(b []byte) (int, error) {
	if p.in.Len() == 0 {
		_, packet, err := readPacket(p.Conn)
		if err != nil {
			return 0, err
		}
		p.in.Reset(packet)
	}
	return p.in.Read(b)
}

func (p *packets) Write(b []byte) (int, error) {
	return len(b), writePacket(p.Conn, packetPrelogin, b)
}

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string // of its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a := &authority{key: key, file: filepath.Join(t.TempDir(), "authority.pem")}
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, key.Public(), key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// issue returns a server's certificate for a name, until a time.
func (a *authority) issue(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.key.Public(), a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}
