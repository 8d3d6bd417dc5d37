package sqltest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// RequireTaken checks a documented way by which a person on call takes a lock from its holder, on a store that keeps a
// history: take does it, on the key of c. The holder loses the lock, the next caller is told by whom and since when it is held,
// and if the way is one for a store with a history, that has both runs.
func RequireTaken(t *testing.T, s *Store, c loki.Claim, withHistory bool, take func()) {
	t.Helper()
	s.MustGrant(t, c)
	before, held, err := s.Inspect(t.Context(), c.Key)
	require.NoError(t, err)
	require.True(t, held)
	take()

	s.MustExtend(t, c, false)
	by := s.MustBeBusy(t, c)
	require.Equal(t, "on call", by.ID, "the holder does not get it back by asking for it anew")
	require.False(t, by.Since.Before(before.Since))
	require.InDelta(t, 30*time.Second, by.Left, float64(25*time.Second))
	s.MustRelease(t, c)

	runs, err := s.History(t.Context(), c.Key, 10)
	require.NoError(t, err)
	require.Equal(t, "on call", runs[0].Holder)
	require.Equal(t, sqlhandler.RunHeld, runs[0].Outcome)
	if !withHistory {
		require.Len(t, runs, 1, "the page has another way for a store with a history")
		return
	}
	require.Len(t, runs, 2)
	require.Equal(t, c.Token, runs[1].Token)
	require.Equal(t, sqlhandler.RunSuperseded, runs[1].Outcome)
	require.Equal(t, before.Since, runs[1].Since)
	require.WithinDuration(t, runs[0].Since, runs[1].Until, 4*time.Millisecond, "they are not two at once, but a store may round")

	s.End(t, c.Key)
	take()
	runs, err = s.History(t.Context(), c.Key, 10)
	require.NoError(t, err)
	var outcomes []sqlhandler.RunOutcome
	for _, run := range runs {
		outcomes = append(outcomes, run.Outcome)
	}
	require.Equal(t, []sqlhandler.RunOutcome{sqlhandler.RunHeld, sqlhandler.RunExpired, sqlhandler.RunSuperseded}, outcomes)

	kept := c // after what ran under it was over
	kept.Token, kept.Over, kept.Failed = "kept", true, true
	s.End(t, c.Key)
	s.MustGrant(t, kept)
	take()
	runs, err = s.History(t.Context(), c.Key, 2)
	require.NoError(t, err)
	require.Equal(t, "kept", runs[1].Token)
	require.Equal(t, sqlhandler.RunFailed, runs[1].Outcome)
	s.End(t, c.Key)
	runs, err = s.History(t.Context(), c.Key, 1)
	require.NoError(t, err)
	require.Equal(t, sqlhandler.RunExpired, runs[0].Outcome, "that of another claim is not this one's")
}
