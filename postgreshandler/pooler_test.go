package postgreshandler_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler"
)

// pooler returns the port of a proxy for the server at port.
func pooler(t *testing.T, port int) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			go func() {
				_ = passOn(client, server)
				_ = client.Close()
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// passOn copies the server's messages, each a letter, its length and its content, and puts another process into that of
// BackendKeyData.
func passOn(client io.Writer, server io.Reader) error {
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(server, head); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, 1_000_000_007)
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return err
		}
	}
}

// A pooler names a process that is none of the server's. It would lend the connection that listens to somebody else.
func TestNotify_BehindAPooler(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	pooled := s.server.Open(t, fmt.Sprintf("port=%d", pooler(t, s.server.Port())))
	through := s.on(pooled)
	through.EveryOperation(t)
	_, err := through.Notify(t.Context(), "job")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "pooler")

	direct := postgreshandler.New(pooled, append(s.opts, postgreshandler.WithListenDSN(s.server.DSN()))...)
	_, err = direct.Notify(t.Context(), "job")
	require.NoError(t, err)
}
