package postgreshandler_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

// The first call after a restart works although every pooled connection is dead, and what was granted is still held.
func TestCase066_FirstUseAfterAnOutage(t *testing.T) {
	server := doomedServer()
	s := newStoreOn(t, server)
	s.db.SetMaxIdleConns(8)
	s.db.SetMaxOpenConns(8)
	c := s.Claim("k")
	s.MustGrant(t, c)
	fill := func() { s.Race(t, "k", 8) } // with idle connections
	for _, end := range []func(){server.Kill, func() { server.Shutdown(t) }} {
		fill()
		end()
		server.Restart(t) // nobody has called meanwhile
		s.MustBeBusy(t, s.Claim("k"))
		s.MustExtend(t, c, true)
	}
	fill()
	server.Kill()
	begun := time.Now()
	for op, send := range operations {
		err := send(within(t, 5*time.Second), s.Handler)
		require.True(t, loki.IsUnavailable(err), "%s: %v", op, err)
	}
	require.Less(t, time.Since(begun), 5*time.Second, "refused at once")
	_, err := s.Notify(within(t, 5*time.Second), "k")
	require.True(t, loki.IsUnavailable(err), "%v", err)
	server.Restart(t)
	s.MustExtend(t, c, true)
	s.MustBeBusy(t, s.Claim("k"))
	require.Zero(t, s.db.Stats().InUse)
}

// Every call is bounded by its ctx, also when the server accepts and never answers, and leaves no connection in use.
func TestServerThatIsFrozen(t *testing.T) {
	server := doomedServer()
	s := newStoreOn(t, server)
	s.MustGrant(t, claim)
	server.Stop(t)
	for op, send := range operations {
		begun := time.Now()
		err := send(within(t, 100*time.Millisecond), s.Handler)
		require.True(t, loki.IsUnavailable(err), "%s: %v", op, err)
		require.Less(t, time.Since(begun), 5*time.Second, op)
	}
	_, err := s.Notify(within(t, 100*time.Millisecond), claim.Key)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	server.Cont(t)
	s.MustBeBusy(t, s.Claim(claim.Key))
	require.Eventually(t, func() bool { return s.db.Stats().InUse == 0 }, 20*time.Second, 5*time.Millisecond)
}

// Opening is lazy: a server that refuses is an unavailable store at the first call.
func TestCase030_NoHandleLeaksAtBuildTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	for range 20 {
		h, err := postgreshandler.Open("postgres://app:secret@" + address + "/app?sslmode=disable")
		require.NoError(t, err)
		_, err = h.Lock(t.Context(), claim)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, h.Close())
		_, err = h.Lock(t.Context(), claim)
		require.ErrorContains(t, err, "database is closed")
		require.False(t, loki.IsUnavailable(err))
	}
}
