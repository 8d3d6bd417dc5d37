package redishandler_test

// This file is the wait for replicas, with replicas that are there, gone, and cut off.

import (
	"context"
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

// replicated is a fixture whose handler waits for one replica, which is behind a proxy.
func replicated(t *testing.T, ack time.Duration) (*fixture, *faultproxy.Proxy) {
	f := newFixture(t, redishandler.WithReplicaAck(1, ack))
	proxy := faultproxy.Start(t, f.server.Addr())
	redistest.StartReplica(t, proxy.Addr())
	return f, proxy
}

func TestReplicaAckConformance(t *testing.T) {
	t.Parallel()
	f, _ := replicated(t, 2*time.Second)
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return f.handler })
}

func TestReplicaAckIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	f, _ := replicated(t, 2*time.Second)
	c := claim("k", time.Minute)
	f.mustHold(c) // the scripts go as texts, the first time
	require.True(t, f.extend(c))
	f.release(c)
	recorder := f.server.Record(t)
	f.mustHold(c)
	f.mustBeBusy(claim("k", time.Minute))
	require.True(t, f.extend(c))
	f.release(c)
	var names []string
	for _, sent := range recorder.Sent(t) {
		if sent.Name() != "replconf" && sent.Name() != "ping" { // the replica's
			names = append(names, sent.Name())
		}
	}
	require.Equal(t, []string{"evalsha", "wait", "evalsha", "wait", "evalsha", "wait", "evalsha"}, names, "a release waits for nobody")
}

// Another request of the same claim may have been confirmed: whether the claim is released is for the Locker to decide.
func TestReplicaAckReleasesNothing(t *testing.T) {
	t.Parallel()
	f, proxy := replicated(t, 2*time.Second)
	earlier := mirrored(claim("k", time.Minute))
	f.mustHold(earlier)
	f.release(earlier)
	held := claim("held", time.Minute)
	f.mustHold(held)

	proxy.BlackHole()
	patient := f.handler
	f.handler = redishandler.New(f.server.Client(t), redishandler.WithReplicaAck(1, 100*time.Millisecond))
	for name, call := range map[string]func(context.Context, loki.Claim) error{
		"Lock":  func(ctx context.Context, c loki.Claim) error { _, err := f.handler.Lock(ctx, c); return err },
		"Grant": func(ctx context.Context, c loki.Claim) error { _, err := f.handler.Grant(ctx, c); return err },
	} {
		c := claim("k", time.Minute)
		requireUnavailable(t, call(t.Context(), c), "0 of 1 replicas acknowledged it within 100ms")
		require.Contains(t, f.value("loki:{k}"), c.Token, name)
		f.release(c)
	}

	// A renewal is not undone, whichever way it comes.
	_, err := f.handler.Extend(t.Context(), held)
	requireUnavailable(t, err, "0 of 1 replicas")
	_, err = f.handler.Lock(t.Context(), held)
	requireUnavailable(t, err, "0 of 1 replicas")
	require.NotEmpty(t, f.value("loki:{held}"))
	f.mustBeBusy(claim("held", time.Minute)) // which is an answer
	require.False(t, f.extend(claim("held", time.Minute)))

	proxy.PassThrough()
	f.handler = patient
	require.Eventually(t, func() bool {
		still, err := f.handler.Extend(t.Context(), held)
		return err == nil && still
	}, 4*patience, 10*time.Millisecond)
	require.Equal(t, earlier.Token, f.mustHold(claim("k", time.Minute)).Released, "what was remembered stays")
}

// A command that is sent again after its reply was lost must not be taken for confirmed by a WAIT of its own.
func TestReplicaAckAfterALostReply(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	redistest.StartReplica(t, f.server.Addr())
	proxy := faultproxy.Start(t, f.server.Addr())
	f.handler = redishandler.New(f.server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), redishandler.WithReplicaAck(1, time.Second))
	c := claim("k", time.Minute)
	f.mustHold(c)
	f.release(c)
	recorder := f.server.Record(t)
	lost := proxy.LoseReply(faultproxy.Containing("evalsha"))
	f.mustHold(c)
	<-lost
	var names []string
	for _, sent := range recorder.Sent(t) {
		if sent.Name() == "evalsha" || sent.Name() == "wait" {
			names = append(names, sent.Name())
		}
	}
	require.Equal(t, "evalsha", names[len(names)-2])
	require.Equal(t, "wait", names[len(names)-1])
	require.GreaterOrEqual(t, len(names), 3, "both are sent again")
}

func TestReplicaAckNeedsAClientOfOneServer(t *testing.T) {
	ack := redishandler.WithReplicaAck(1, 50*time.Millisecond)
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: time.Second})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: 50 * time.Millisecond})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	for _, client := range []redis.UniversalClient{single, cluster, ring} {
		defer func() { require.NoError(t, client.Close()) }()
	}
	require.NoError(t, redishandler.New(single, ack).Validate())
	require.NoError(t, redishandler.New(struct{ *redis.Client }{single}, ack).Validate())
	for text, h := range map[string]*redishandler.Handler{
		"cannot be kept with a *redis.Ring":           redishandler.New(ring, ack),
		"cannot be kept with a struct":                redishandler.New(struct{ redis.UniversalClient }{single}, ack),
		"may wait for 50ms, and the client gives up":  redishandler.New(cluster, ack),
		"may wait for 1s, and the client gives up":    redishandler.New(single, redishandler.WithReplicaAck(1, time.Second)),
		"WithReplicaAck of 0 replicas":                redishandler.New(single, redishandler.WithReplicaAck(0, time.Millisecond)),
		"WithReplicaAck of -1 replicas":               redishandler.New(single, redishandler.WithReplicaAck(-1, time.Millisecond)),
		"WithReplicaAck with a timeout of 0s":         redishandler.New(single, redishandler.WithReplicaAck(1, 0)),
		"WithReplicaAck with a timeout of -1ns would": redishandler.New(single, redishandler.WithReplicaAck(1, -1)),
	} {
		requireMistake(t, h.Validate(), text)
	}
}

func TestReplicaAckWithoutPermissionIsAMistake(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do("ACL", "SETUSER", "locks", "on", "nopass", "~*", "&*", "+@all", "-wait")
	f.handler = redishandler.New(f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "any" }),
		redishandler.WithReplicaAck(1, 50*time.Millisecond))
	_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "may not run WAIT (NOPERM): run ACL SETUSER locks +wait")
}

// A master that becomes a replica ends every WAIT.
func TestReplicaAckOfAMasterThatIsOneNoLonger(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustHold(claim("warm", time.Minute)) // the server knows the script after this
	f.handler = redishandler.New(f.server.Client(t, noWait), redishandler.WithReplicaAck(1, 2*time.Second))
	ended := make(chan error, 1)
	go func() {
		_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
		ended <- err
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(f.redis.Info(t.Context(), "clients").Val(), "blocked_clients:1")
	}, patience, time.Millisecond)
	f.do("REPLICAOF", "127.0.0.1", 1)
	err := <-ended
	requireUnavailable(t, err, "UNBLOCKED")
}
