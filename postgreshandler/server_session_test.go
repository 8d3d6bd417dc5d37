package postgreshandler_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

// In another encoding the server takes the same bytes for another text: it would be another lock.
func TestServerKeysInAnotherEncodingAreRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	latin := s.open(t, "client_encoding=LATIN1")
	a := s.Claim("café")
	for range 2 { // in an empty table too
		for op, send := range operations {
			err := send(t.Context(), latin.Handler)
			require.ErrorContains(t, err, "add client_encoding=UTF8 to the data source name", op)
			require.False(t, loki.IsUnavailable(err), "%s: %v", op, err)
		}
		s.MustGrant(t, a)
	}
	require.Equal(t, 1, s.Count(t))
	err := postgreshandler.Check(t.Context(), latin.db, s.opts...)
	require.ErrorContains(t, err, "is LATIN1, not UTF8")
	require.ErrorContains(t, err, "add client_encoding=UTF8 to the data source name")
	s.open(t, "client_encoding=utf-8").MustBeBusy(t, s.Claim("café"))

	h, err := postgreshandler.Open(s.server.DSN("client_encoding=LATIN1"), s.opts...)
	require.NoError(t, err)
	defer h.Close()
	g, err := h.Grant(t.Context(), s.Claim("café"))
	require.NoError(t, err)
	require.False(t, g.Held)
	require.Equal(t, a.Holder, g.HeldBy.ID)
}

// LISTEN goes by the simple protocol, for which pgx wants an encoding and a setting that the pool's sessions need not have.
func TestServerListensWhateverThePoolsSettings(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, setting := range []string{"standard_conforming_strings=off", "client_encoding=LATIN1"} {
		other := s.open(t, setting)
		told, stop := other.listen(t, "café")
		c := s.Claim("café")
		s.MustGrant(t, c)
		s.MustRelease(t, c)
		requireTold(t, told)
		stop()
	}
}
