package postgreshandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/sqlhandler"
)

func TestServerClockPutBackUnderAClaim(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	a, b := s.Claim("k"), s.Claim("k")
	b.Supersedes = a.Token
	s.MustGrant(t, a)
	s.exec(t, "UPDATE $T SET granted_at = granted_at + interval '1 hour', expires_at = expires_at + interval '1 hour', fence = fence + 3600000000")
	var fence int64
	s.get(t, &fence, "SELECT fence FROM $T")
	require.Equal(t, fence+1, s.MustGrant(t, b))
	s.requireOutcomes(t, "k", sqlhandler.RunHeld, sqlhandler.RunSuperseded)
}

func TestServerClockPutBackAfterARelease(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	a, b := s.Claim("k"), s.Claim("k")
	s.MustGrant(t, a)
	s.MustRelease(t, a)
	s.exec(t, "UPDATE $H SET granted_at = granted_at + interval '1 hour', ended_at = ended_at + interval '1 hour'")
	s.MustGrant(t, b)
	runs, err := s.History(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, b.Token, runs[0].Token, "the first is the one that holds")
}

// A fence that a release kept is nobody's claim, also when its row says that it has not expired.
func TestServerClockPutBackUnderAKeptFence(t *testing.T) {
	t.Parallel()
	for _, supersedes := range []string{"", "older"} {
		s := newStore(t, postgreshandler.WithHistory(time.Hour))
		a, b := s.Claim("k"), s.Claim("k")
		a.Fence = time.Now().Add(2 * time.Hour).UnixMicro()
		b.Supersedes = supersedes
		fence := s.MustGrant(t, a)
		s.MustRelease(t, a)
		s.exec(t, "UPDATE $T SET expires_at = expires_at + interval '1 hour'")
		by, held, err := s.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, held, "by %v", by)
		require.Equal(t, fence+1, s.MustGrant(t, b))
		s.requireOutcomes(t, "k", sqlhandler.RunHeld, sqlhandler.RunReleased)
	}
}
