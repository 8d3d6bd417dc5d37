package redishandler_test

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// durable are the arguments of a server about which Check has nothing to say.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// requireFault demands an error that is neither an outage nor mere advice.
func requireFault(t *testing.T, err error, text string) {
	t.Helper()
	requireMistake(t, err, text)
	require.NotErrorIs(t, err, redishandler.ErrAdvice)
}

// requireAdvice demands an error that keeps no lock from working.
func requireAdvice(t *testing.T, err error, text string) {
	t.Helper()
	requireMistake(t, err, text)
	require.ErrorIs(t, err, redishandler.ErrAdvice)
	for line := range strings.Lines(err.Error()) {
		require.True(t, strings.HasPrefix(line, "redishandler: advice: "), line)
	}
}

func TestCheckFindsNothingAndChangesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, durable...)
	client := server.Client(t)
	for _, opts := range [][]redishandler.Option{nil, {redishandler.WithPrefix("other:")}, {redishandler.WithLokiNetKeys()}} {
		require.NoError(t, redishandler.Check(t.Context(), server.Client(t), opts...))
		require.NoError(t, redishandler.Check(t.Context(), server.Client(t, func(o *redis.Options) { o.Protocol = 2 }), opts...))
	}
	require.Zero(t, client.DBSize(t.Context()).Val())
	require.Contains(t, client.Info(t.Context(), "stats").Val(), "expired_keys:0\r")
	require.Contains(t, client.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save:0\r")
}

func TestCheckReturnsWhatValidateReturns(t *testing.T) {
	var client *redis.Client
	requireFault(t, redishandler.Check(t.Context(), client), "the client is nil")
}

func TestCheckOfAServer(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	for name, c := range map[string]struct {
		server *redistest.Server
		opts   []redishandler.Option
		text   string
		advice bool
	}{
		"a replica":       {redistest.StartReplica(t, master.Addr()), nil, "name its master, which is \"" + master.Addr() + "\"", false},
		"a sentinel":      {redistest.StartSentinels(t, "locks", redistest.Start(t), 0)[0], nil, "redis.NewFailoverClient", false},
		"a node":          {redistest.StartCluster(t, 1, false).Masters[0], nil, "redis.NewClusterClient", false},
		"eviction":        {redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"), nil, "CONFIG SET maxmemory-policy noeviction", false},
		"no replica":      {redistest.Start(t), []redishandler.Option{redishandler.WithReplicaAck(1, time.Second)}, "has 0 replicas, and WithReplicaAck asks for 1", false},
		"no log":          {redistest.Start(t), nil, "CONFIG SET appendonly yes", true},
		"a lax log":       {redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec"), nil, "CONFIG SET appendfsync always", true},
		"another command": {redistest.Start(t, "--rename-command", "DEL", "REMOVE"), nil, "DEL: ", false},
		"no scripts":      {redistest.Start(t, "--rename-command", "EVALSHA", ""), nil, "has to have EVAL and EVALSHA", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := redishandler.Check(t.Context(), c.server.Client(t), c.opts...)
			if c.advice {
				requireAdvice(t, err, c.text)
			} else {
				requireFault(t, err, c.text)
			}
		})
	}
}

func TestCheckNamesEveryMissingPermission(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, server: redistest.Start(t, durable...)}
	f.redis = f.server.Client(t)
	documented := []string{"+eval", "+evalsha", "+get", "+getex", "+set", "+del", "+pexpire", "+pttl", "+time"}
	waking := []string{"&loki:*", "+publish", "+subscribe", "+unsubscribe", "+ping"}
	check := func(rules ...string) error {
		args := []any{"ACL", "SETUSER", "locks", "reset", "on", ">secret", "resetchannels"}
		for _, rule := range rules {
			args = append(args, rule)
		}
		f.do(args...)
		client := f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" })
		err := redishandler.Check(t.Context(), client)
		require.Empty(t, f.keys())
		return err
	}
	with := func(left string, rules ...[]string) []string {
		var all []string
		for _, some := range rules {
			for _, rule := range some {
				if rule != left {
					all = append(all, rule)
				}
			}
		}
		return all
	}
	require.NoError(t, check(with("", documented, waking, []string{"~loki:*", "+info", "+config|get"})...))
	requireAdvice(t, check(with("", documented, waking, []string{"~loki:*"})...), "does not let this user run INFO")
	for _, left := range documented {
		requireFault(t, check(with(left, documented, waking, []string{"~loki:*", "+info"})...), "run ACL SETUSER locks "+left)
	}
	requireFault(t, check("~loki:*", "+eval", "+evalsha", "+info"), "+del +get +getex +pexpire +pttl +set +time")
	requireFault(t, check(with("", documented, waking, []string{"~other:*", "+info"})...), "run ACL SETUSER locks ~loki:*")
	for _, left := range []string{"&loki:*", "+publish", "+subscribe"} {
		requireAdvice(t, check(with(left, documented, waking, []string{"~loki:*", "+info"})...), "waiters are not woken and poll")
	}
}

func TestCheckReturnsEveryFault(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, server: redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")}
	f.redis = f.server.Client(t)
	f.do("ACL", "SETUSER", "locks", "on", "nopass", "~*", "&*", "+@all", "-del", "-wait")
	client := f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "any" })
	err := redishandler.Check(t.Context(), client, redishandler.WithReplicaAck(2, time.Second))
	for _, text := range []string{"noeviction", "+del", "+wait", "asks for 2", "appendonly yes"} {
		requireFault(t, err, text)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 5)
}

func TestCheckOfAServerThatCannotAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	check := func(ctx context.Context) error {
		return redishandler.Check(ctx, f.server.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Minute }))
	}
	f.do("CONFIG", "SET", "maxmemory", "1")
	requireUnavailable(t, check(t.Context()), "OOM")
	f.do("CONFIG", "SET", "maxmemory", "0")
	f.server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := check(ctx)
	requireUnavailable(t, err, "no answer to the check within")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	f.server.Kill()
	requireUnavailable(t, check(t.Context()), "refused")
}

func TestCheckOfAWrongPasswordIsAFault(t *testing.T) {
	f := newFixture(t)
	f.do("ACL", "SETUSER", "default", "resetpass", ">secret")
	requireFault(t, redishandler.Check(t.Context(), f.server.Client(t)), "check its Username and Password")
}

func TestCheckLooksAtEveryMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false, durable...)
	require.NoError(t, redishandler.Check(t.Context(), cluster.Client(t)))
	faulty := cluster.Masters[2]
	require.NoError(t, faulty.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-del").Err())
	err := redishandler.Check(t.Context(), cluster.Client(t))
	requireFault(t, err, "the user of the server at "+faulty.Addr()+" may not run DEL")
	require.NotContains(t, err.Error(), cluster.Masters[0].Addr())

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Start(t, durable...).Addr(), "b": redistest.Start(t).Addr()}})
	defer func() { require.NoError(t, ring.Close()) }()
	requireAdvice(t, redishandler.Check(t.Context(), ring), "appendonly yes")
}

func TestCheckOfAClientThatCanOnlyRunScripts(t *testing.T) {
	type scriptsOnly struct{ redishandler.Client }
	server := redistest.Start(t, durable...)
	err := redishandler.Check(t.Context(), scriptsOnly{server.Client(t)})
	requireAdvice(t, err, "sends no INFO")
	require.ErrorContains(t, err, "cannot subscribe")
	require.NotErrorIs(t, err, loki.ErrUnavailable)
}

// A service gives Check the context that it runs with.
func TestCheckEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialTimeout: time.Minute, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(30 * time.Second)
			return nil, syscall.ECONNREFUSED
		}})
		defer time.Sleep(time.Minute) // until the dials have ended
		defer func() { _ = client.Close() }()
		begun := time.Now()
		err := redishandler.Check(t.Context(), client)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.Equal(t, 10*time.Second, time.Since(begun))
	})
}
