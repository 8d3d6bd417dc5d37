package redishandler_test

// This file is Sentinel: a master that is killed with locks held, and what its successor knows of them.

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redishandler"
)

// failoverPatience is how long a test waits for a failover, which takes some three seconds on an idle machine.
const failoverPatience = 45 * time.Second

// watched is a master whose two replicas are each behind a proxy, and three sentinels.
type watched struct {
	t         *testing.T
	master    *redistest.Server
	proxies   []*faultproxy.Proxy
	sentinels []*redistest.Server
}

func startWatched(t *testing.T) *watched {
	w := &watched{t: t, master: redistest.Start(t)}
	for range 2 {
		proxy := faultproxy.Start(t, w.master.Addr())
		redistest.StartReplica(t, proxy.Addr())
		w.proxies = append(w.proxies, proxy)
	}
	w.sentinels = redistest.StartSentinels(t, "locks", w.master, 2)
	return w
}

// client is a client as an application has it.
func (w *watched) client() *redis.Client {
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: addrs(w.sentinels)})
	w.t.Cleanup(func() { require.NoError(w.t, client.Close()) })
	return client
}

// cutReplicasOff leaves the replicas with what they have.
func (w *watched) cutReplicasOff() {
	for _, proxy := range w.proxies {
		proxy.Refuse()
	}
}

// awaitMaster asks for a lock until it is answered. Whatever is said before that has to be an outage.
func awaitMaster(t *testing.T, h *redishandler.Handler, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c := claim(key, time.Minute)
		held, err := h.Lock(t.Context(), c)
		if err != nil {
			require.True(t, loki.IsUnavailable(err), "%v is not taken for an outage", err)
			return false
		}
		require.True(t, held)
		require.NoError(t, h.Release(t.Context(), c))
		return true
	}, failoverPatience, 10*time.Millisecond)
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	client := w.client()
	plain, confirmed := redishandler.New(client), redishandler.New(client, redishandler.WithReplicaAck(1, 2*time.Second))
	known, missed, refused := claim("known", time.Hour), claim("missed", time.Hour), claim("refused", time.Hour)

	g, err := confirmed.Grant(t.Context(), known)
	require.NoError(t, err)
	require.True(t, g.Held)

	w.cutReplicasOff()
	lost, err := plain.Grant(t.Context(), missed)
	require.NoError(t, err, "without WithReplicaAck the master's word is enough")
	require.True(t, lost.Held)
	_, err = confirmed.Grant(t.Context(), refused)
	requireUnavailable(t, err, "0 of 1 replicas acknowledged")

	redistest.AllowFailover(t, "locks", w.sentinels, true)
	w.master.Kill()
	awaitMaster(t, plain, "probe")
	redistest.AllowFailover(t, "locks", w.sentinels, false)

	t.Run("a lock that a replica had acknowledged is still held", func(t *testing.T) {
		require.Eventually(t, func() bool { // the other replica has to find the new master first
			held, err := confirmed.Extend(t.Context(), known)
			require.True(t, held || loki.IsUnavailable(err), "%v", err)
			return held
		}, failoverPatience, 10*time.Millisecond)
		busy, err := plain.Grant(t.Context(), claim("known", time.Hour))
		require.NoError(t, err)
		require.False(t, busy.Held)
		require.Equal(t, known.Holder, busy.HeldBy.ID)
	})
	t.Run("a lock that no replica had is gone, and a second holder gets it", func(t *testing.T) {
		second, err := plain.Grant(t.Context(), claim("missed", time.Hour))
		require.NoError(t, err)
		require.True(t, second.Held)
		require.Greater(t, second.Fence, lost.Fence, "what the fence guards still tells the two apart")
		held, err := plain.Extend(t.Context(), missed)
		require.NoError(t, err)
		require.False(t, held, "the first holder learns of it at its next renewal")
	})
	t.Run("a lock that was refused is free", func(t *testing.T) {
		held, err := plain.Lock(t.Context(), refused)
		require.NoError(t, err)
		require.True(t, held)
	})
	t.Run("conformance", func(t *testing.T) {
		lokitest.Run(t, func(*testing.T) loki.LockHandler { return plain })
	})
}

// A switch that somebody asks for leaves the old master alive, and its connections too. The sentinels ask for a login, of
// the user that the page on Redis has.
func TestSentinelSwitch(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.StartReplica(t, master.Addr())
	sentinels := redistest.StartSentinels(t, "locks", master, 1)
	for _, s := range sentinels {
		for _, command := range documented(t, "sentinel", "ACL SETUSER") {
			require.NoError(t, s.Client(t).Do(t.Context(), command...).Err())
		}
		// It goes by these when the old master, until then without a successor to copy, is told. Before 7.0 they are fixed.
		_ = s.Client(t).Do(t.Context(), "SENTINEL", "DEBUG", "INFO-PERIOD", 300, "PUBLISH-PERIOD", 300).Err()
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "locks", SentinelAddrs: addrs(sentinels), SentinelUsername: "finder", SentinelPassword: "secret",
	})
	defer func() { require.NoError(t, client.Close()) }()
	h := redishandler.New(client, redishandler.WithReplicaAck(1, time.Second))
	c := claim("k", time.Hour)
	hold(t, h, c)
	told, err := h.Notify(t.Context(), "k")
	require.NoError(t, err)

	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinels[0].Addr()})
	defer func() { require.NoError(t, sentinel.Close()) }()
	require.Eventually(t, func() bool { // the sentinels may still be of two minds
		return sentinel.Failover(t.Context(), "locks").Err() == nil
	}, failoverPatience, 50*time.Millisecond)
	last := ""
	require.Eventually(t, func() bool {
		held, err := h.Extend(t.Context(), c)
		if err != nil {
			last = err.Error()
			require.True(t, loki.IsUnavailable(err), "%v is not taken for an outage", err)
			return false
		}
		require.True(t, held, "the lock is lost")
		now, err := sentinel.GetMasterAddrByName(t.Context(), "locks").Result()
		return err == nil && now[1] != portOf(master) && h.Validate() == nil
	}, failoverPatience, time.Millisecond, "last: %s", last)

	require.Eventually(t, func() bool {
		select {
		case <-told: // restored at the new master, or closed
			return true
		default:
			return false
		}
	}, failoverPatience, 10*time.Millisecond)
	require.Eventually(t, func() bool { return h.Release(t.Context(), c) == nil }, failoverPatience, 10*time.Millisecond)
}

func addrs(servers []*redistest.Server) []string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func portOf(s *redistest.Server) string {
	_, port, _ := strings.Cut(s.Addr(), ":")
	return port
}

// https://github.com/bitnami/charts/issues/3366
func TestSentinelsThatRefuseAreAPermanentError(t *testing.T) {
	t.Parallel()
	sentinels := redistest.StartSentinels(t, "locks", redistest.Start(t), 0)
	refused := func(change func(*redis.FailoverOptions)) error {
		o := &redis.FailoverOptions{MasterName: "locks", SentinelAddrs: addrs(sentinels), SentinelUsername: "finder", SentinelPassword: "secret"}
		change(o)
		aSentinelIsDown := slices.ContainsFunc(sentinels, (*redistest.Server).Ended)
		if aSentinelIsDown { // go-redis takes a minute to give it up, if no other one names the master
			o.MaxRetries, o.DialerRetries = -1, 1
		}
		client := redis.NewFailoverClient(o)
		defer func() { require.NoError(t, client.Close()) }()
		_, err := redishandler.New(client).Lock(t.Context(), claim("k", time.Minute))
		if !aSentinelIsDown {
			require.Eventually(t, func() bool { // a busy machine may take longer than a call may
				return !errors.Is(callOnce(t, redis.NewFailoverClient(o)), loki.ErrUnavailable)
			}, failoverPatience, time.Millisecond)
		}
		return err
	}
	for _, s := range sentinels {
		client := s.Client(t)
		for _, command := range documented(t, "sentinel", "ACL SETUSER") {
			require.NoError(t, client.Do(t.Context(), command...).Err())
		}
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "outsider", "on", ">secret", "+ping").Err())
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">other").Err())
	}
	require.NoError(t, refused(func(*redis.FailoverOptions) {}))
	for advice, change := range map[string]func(o *redis.FailoverOptions){
		"check its SentinelUsername and SentinelPassword":                      func(o *redis.FailoverOptions) { o.SentinelPassword = "wrong" },
		"refused the client's login: check its SentinelUsername":               func(o *redis.FailoverOptions) { o.SentinelUsername, o.SentinelPassword = "", "" },
		"SentinelUsername and SentinelPassword, which are not those of the se": func(o *redis.FailoverOptions) { o.SentinelUsername = "nobody" },
		"the sentinels' user lacks a permission (NOPERM)":                      func(o *redis.FailoverOptions) { o.SentinelUsername = "outsider" },
		"check the client's MasterName":                                        func(o *redis.FailoverOptions) { o.MasterName = "lockz" },
		"SentinelAddrs names a server that is no sentinel": func(o *redis.FailoverOptions) {
			o.SentinelAddrs, o.SentinelUsername, o.SentinelPassword = []string{redistest.Start(t).Addr()}, "", ""
		},
	} {
		requireMistake(t, refused(change), advice)
	}
	sentinels[0].Kill()
	requireMistake(t, refused(func(o *redis.FailoverOptions) { o.SentinelPassword = "wrong" }), "SentinelPassword")
	requireUnavailable(t, refused(func(o *redis.FailoverOptions) { o.MasterName = "lockz" }), "refused") // the dead one might know it
	sentinels[1].Kill()
	sentinels[2].Kill()
	requireUnavailable(t, refused(func(*redis.FailoverOptions) {}), "refused")
}
