package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

func aVoter(t *testing.T) *voter {
	t.Helper()
	all, err := startVoters(t, 1)
	require.NoError(t, err)
	require.Equal(t, referee.Server(1), all[0].name)
	require.NoError(t, all[0].client.Set(t.Context(), "key", "promised", 0).Err())
	return all[0]
}

func TestAServerThatCrashesKeepsItsData(t *testing.T) {
	v := aVoter(t)
	v.kill()
	v.restart(t)
	require.Equal(t, "promised", v.client.Get(t.Context(), "key").Val())
}

// A proof that is interrupted brings what has begun to its end at once, but not this.
func TestAServerThatComesBackEmptyHasBeenAway(t *testing.T) {
	const away = 300 * time.Millisecond
	v := aVoter(t)
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	begun := monotonic()
	v.kill()
	require.NoError(t, v.restartEmpty(interrupted, t, away))
	require.Greater(t, monotonic()-begun, away)
	require.Zero(t, v.client.Exists(t.Context(), "key").Val())

	require.NoError(t, v.client.Set(t.Context(), "key", "new", 0).Err())
	v.kill()
	v.restart(t)
	require.Equal(t, "new", v.client.Get(t.Context(), "key").Val(), "it keeps its data again")
}

// Each server is looked at: what a minority keeps is in the way of others too.
func TestLeftoversOfAQuorum(t *testing.T) {
	s := of(3, short(referee.Alone, true))
	st, err := startStores(t.Context(), t, s)
	require.NoError(t, err)
	left, err := st.leftovers(t.Context(), "key")
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, st.voters[1].client.Set(t.Context(), "loki:{key}", "a token", 0).Err())
	require.NoError(t, st.voters[1].client.Set(t.Context(), "loki:{key}:fence", "1", 0).Err())
	left, err = st.leftovers(t.Context(), "key")
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "server 2", left[0].Store)
	require.Contains(t, left[0].Text, "a token")
}
