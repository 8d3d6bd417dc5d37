package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

const failoverPatience = 30 * time.Second

func TestSentinelsPromoteAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master.Addr())
	require.NoError(t, master.Client(t).Set(t.Context(), "k", "v", 0).Err())
	require.EqualValues(t, 1, master.Client(t).Wait(t.Context(), 1, failoverPatience).Val())

	sentinels := redistest.StartSentinels(t, "locks", master, 1)
	require.Len(t, sentinels, 3)
	addrs := []string{sentinels[0].Addr(), sentinels[1].Addr(), sentinels[2].Addr()}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: addrs})
	defer func() { require.NoError(t, client.Close()) }()
	require.NoError(t, client.Set(t.Context(), "other", "v", 0).Err())
	redistest.AllowFailover(t, "locks", sentinels, true)
	master.Kill()
	require.Eventually(t, func() bool { return client.Set(t.Context(), "another", "v", 0).Err() == nil }, failoverPatience, 10*time.Millisecond)
	require.Equal(t, "v", replica.Client(t).Get(t.Context(), "k").Val())
	require.Equal(t, "v", replica.Client(t).Get(t.Context(), "another").Val())
}

func TestClusterPromotesAReplica(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	client := cluster.Client(t)
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		require.NoError(t, client.Set(t.Context(), key, "v", 0).Err())
	}
	owner, others := cluster.Of(t, "a")
	require.Len(t, others, 2)
	require.EqualValues(t, 1, owner.Client(t).Wait(t.Context(), 1, failoverPatience).Val())
	owner.Kill()
	require.Eventually(t, func() bool {
		client.ReloadState(t.Context()) // by itself it would look again after a minute
		return client.Set(t.Context(), "a", "w", 0).Err() == nil
	}, failoverPatience, 10*time.Millisecond)
	owner.Restart(t)
	cluster.Await(t)
	promoted, _ := cluster.Of(t, "a")
	require.NotEqual(t, owner.Addr(), promoted.Addr())
}

func TestRestartWithArguments(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	require.NoError(t, server.Client(t).Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, server.Client(t).Save(t.Context()).Err())
	server.Restart(t, "--maxclients", "77")
	require.Equal(t, "v", server.Client(t).Get(t.Context(), "k").Val())
	require.Equal(t, "77", server.Client(t).ConfigGet(t.Context(), "maxclients").Val()["maxclients"])
}

func TestTheProgramCanBeNamed(t *testing.T) {
	t.Setenv(redistest.ProgramVar, "/no/such/valkey-server")
	defer func() { require.Contains(t, recover(), "there is no /no/such/valkey-server") }()
	redistest.Start(helper{})
}
