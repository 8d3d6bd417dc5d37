package redishandler_test

// This file is Redis Cluster: a slot that moves and a master that is killed, with a lock held.

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redishandler"
)

// Its nodes have no replicas: everything that needs none is in one test, since a cluster takes seconds to start.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	client := cluster.Client(t)
	t.Run("conformance", func(t *testing.T) {
		lokitest.Run(t, func(*testing.T) loki.LockHandler { return redishandler.New(client) })
	})
	t.Run("one slot a lock", func(t *testing.T) { testOneSlotALock(t, cluster) })
	t.Run("the documented permissions are enough", func(t *testing.T) { testClusterPermissions(t, cluster) })
}

func testOneSlotALock(t *testing.T, cluster *redistest.Cluster) {
	f := &fixture{t: t, handler: redishandler.New(cluster.Client(t))}
	for _, key := range nastyKeys {
		a, b := mirrored(claim(key, time.Minute)), claim(key, time.Minute)
		f.mustHold(a)
		f.mustBeBusy(b)
		for _, node := range cluster.Masters {
			require.NoError(t, node.Client(t).ScriptFlush(t.Context()).Err())
		}
		require.True(t, f.extend(a))
		f.release(a)
		require.Equal(t, a.Token, f.mustHold(b).Released)
	}

	owner, others := cluster.Of(t, "loki:{told}")
	recorder := owner.Record(t)
	elsewhere := others[0].Record(t)
	told, err := f.handler.Notify(t.Context(), "told")
	require.NoError(t, err)
	c := claim("told", time.Minute)
	f.mustHold(c)
	f.release(c)
	requireTold(t, told)
	var published []string
	for _, command := range recorder.Scripted(t) {
		if strings.HasSuffix(command.Name(), "publish") {
			published = append(published, command.Name()+" "+command.Args[1])
		}
	}
	if atLeast(t, owner, 7) {
		require.Equal(t, []string{"spublish loki:{told}:free"}, published)
	} else {
		require.Equal(t, []string{"publish loki:{told}:free"}, published)
	}
	require.Empty(t, elsewhere.Scripted(t), "a lock concerns one node")
}

// atLeast reports whether a server speaks as Redis of a version does.
func atLeast(t *testing.T, s *redistest.Server, major int) bool {
	t.Helper()
	info := s.Client(t).Info(t.Context(), "server").Val()
	_, version, _ := strings.Cut(info, "redis_version:")
	version, _, _ = strings.Cut(version, ".")
	is, err := strconv.Atoi(version)
	require.NoError(t, err)
	return is >= major
}

// slotMove is a slot on its way from one master to another.
type slotMove struct {
	t        *testing.T
	slot     int64
	from, to *redis.Client
	toServer *redistest.Server
}

func startSlotMove(t *testing.T, cluster *redistest.Cluster, key string) *slotMove {
	owner, others := cluster.Of(t, key)
	m := &slotMove{t: t, from: owner.Client(t), to: others[0].Client(t), toServer: others[0]}
	m.slot = m.from.ClusterKeySlot(t.Context(), key).Val()
	m.do(m.to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.id(m.from))
	m.do(m.from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.id(m.to))
	return m
}

func (m *slotMove) do(client *redis.Client, args ...any) {
	m.t.Helper()
	require.NoError(m.t, client.Do(m.t.Context(), args...).Err())
}

func (m *slotMove) id(client *redis.Client) string {
	return client.Do(m.t.Context(), "CLUSTER", "MYID").Val().(string)
}

func (m *slotMove) migrate(keys ...string) {
	host, port, _ := strings.Cut(m.toServer.Addr(), ":")
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.do(m.from, args...)
}

func (m *slotMove) finish() {
	m.do(m.to, "CLUSTER", "SETSLOT", m.slot, "NODE", m.id(m.to))
	m.do(m.from, "CLUSTER", "SETSLOT", m.slot, "NODE", m.id(m.to))
}

func TestClusterSlotMovesWhileALockIsHeld(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	ack := redishandler.WithReplicaAck(1, 2*time.Second)
	// Each client learns of the move by itself: by Lock, by Lock with WithReplicaAck, and by listening.
	f := &fixture{t: t, handler: redishandler.New(cluster.Client(t))}
	acked := &fixture{t: t, handler: redishandler.New(cluster.Client(t), ack)}
	listening := redishandler.New(cluster.Client(t))
	a, b := claim("k", time.Hour), claim("k", time.Hour)
	fence := acked.mustHold(a).Fence
	f.mustBeBusy(b)
	told, err := listening.Notify(t.Context(), "k")
	require.NoError(t, err)

	holds := func(when string) {
		t.Helper()
		require.True(t, f.extend(a), when)
		require.True(t, acked.extend(a), when)
		require.Equal(t, a.Holder, f.mustBeBusy(b).HeldBy.ID, when)
		require.Equal(t, fence, f.mustHold(a).Fence, when)
		require.Equal(t, fence, acked.mustHold(a).Fence, when)
	}
	move := startSlotMove(t, cluster, "loki:{k}")
	holds("the slot is to move, and its keys are where they were")

	move.migrate("loki:{k}")
	for _, h := range []*redishandler.Handler{f.handler, acked.handler} {
		for name, call := range calls(h, a) {
			if name != "Inspect" { // which has one key
				requireUnavailable(t, call(t.Context()), "TRYAGAIN")
			}
		}
	}

	move.migrate("loki:{k}:fence")
	holds("its keys have moved (ASK)")

	move.finish()
	holds("the slot has moved (MOVED)")

	if atLeast(t, move.toServer, 7) {
		select {
		case _, ok := <-told:
			require.False(t, ok, "nobody has freed the lock")
		case <-time.After(patience):
			t.Fatal("who listened at the old node was not told that it is deaf")
		}
		require.Eventually(t, func() bool { // the node that the client asks may not know yet
			told, err = listening.Notify(t.Context(), "k")
			return err == nil
		}, patience, 10*time.Millisecond)
	}
	f.release(a)
	requireTold(t, told)
	require.Greater(t, f.mustHold(b).Fence, fence)
}

func TestClusterMasterIsKilled(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	client := cluster.Client(t)
	plain, confirmed := redishandler.New(client), redishandler.New(client, redishandler.WithReplicaAck(1, 2*time.Second))
	c := claim("k", time.Hour)
	g, err := confirmed.Grant(t.Context(), c)
	require.NoError(t, err)
	require.True(t, g.Held)
	told, err := plain.Notify(t.Context(), "k")
	require.NoError(t, err)

	owner, others := cluster.Of(t, "loki:{k}")
	owner.Kill()
	for name, h := range map[string]*redishandler.Handler{"plain": plain, "confirmed": confirmed} {
		// Every operation of every handler finds its way, and says nothing else than "unavailable" before it has.
		require.Eventually(t, func() bool {
			held, err := plain.Extend(t.Context(), c)
			if err == nil {
				require.True(t, held, name)
				return true
			}
			require.True(t, loki.IsUnavailable(err), "%s: %v", name, err)
			return false
		}, failoverPatience, 10*time.Millisecond)
		// No replica is left to acknowledge.
		_, err := h.Lock(t.Context(), c)
		if name == "plain" {
			require.NoError(t, err)
		} else {
			requireUnavailable(t, err, "0 of 1 replicas")
		}
	}
	busy, err := plain.Grant(t.Context(), claim("k", time.Hour))
	require.NoError(t, err)
	require.False(t, busy.Held)
	require.Equal(t, c.Holder, busy.HeldBy.ID)

	// Half of the cluster is gone when a second master is: nobody can be voted for.
	require.NoError(t, plain.Release(t.Context(), c))
	requireToldOrClosed(t, told)
	for _, node := range others {
		node.Kill()
	}
	require.Eventually(t, func() bool {
		_, err := plain.Lock(t.Context(), claim("k", time.Hour))
		if err == nil {
			return false
		}
		require.True(t, loki.IsUnavailable(err), "%v is not taken for an outage", err)
		return redis.IsClusterDownError(err)
	}, failoverPatience, 10*time.Millisecond)
}

// requireToldOrClosed waits for a reason to look at the lock again.
func requireToldOrClosed(t *testing.T, told <-chan struct{}) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(failoverPatience):
		t.Fatal("nobody was told")
	}
}
