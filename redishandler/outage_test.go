package redishandler_test

// This file is the errors that are an outage, and must look neither like a mistake nor like busy.

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

func TestCase005_ARefusedConnectionIsUnavailable(t *testing.T) {
	f := newFixture(t)
	f.server.Kill()
	handler := redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.DialerRetries = 1 }))
	for name, call := range calls(handler, claim("k", time.Minute)) {
		err := call(t.Context())
		requireUnavailable(t, err, "refused")
		var opErr *net.OpError
		require.ErrorAs(t, err, &opErr, name)
	}
}

func TestCase071_AReplicaIsUnavailableWhateverItKnows(t *testing.T) {
	f := newFixture(t)
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	held, free := claim("held", time.Minute), claim("free", time.Minute)
	_, err := redishandler.New(master.Client(t)).Lock(t.Context(), held)
	require.NoError(t, err)

	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	f.do("REPLICAOF", host, port)
	require.Eventually(t, func() bool { return f.value("loki:{held}") != "" }, 4*patience, time.Millisecond)

	handler := redishandler.New(f.server.Client(t, noWait))
	for _, c := range []loki.Claim{held, free, claim("held", time.Minute)} { // who asks may hold, or find it free, or busy
		for name, call := range calls(handler, c) {
			if name != "Inspect" {
				requireUnavailable(t, call(t.Context()), "READONLY")
			}
		}
	}
	holder, found, err := handler.Inspect(t.Context(), "held")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, held.Holder, holder.ID)

	f.do("REPLICAOF", "NO", "ONE")
	f.mustHold(held)
	f.mustHold(free)
}

func TestCase074_OutOfMemory(t *testing.T) {
	f := newFixture(t)
	held, other := mirrored(claim("held", time.Minute)), claim("other", time.Minute)
	f.mustHold(held)
	f.do("CONFIG", "SET", "maxmemory", "1")

	_, err := f.handler.Lock(t.Context(), other)
	requireUnavailable(t, err, "OOM")
	require.ElementsMatch(t, []string{"loki:{held}", "loki:{held}:fence"}, f.keys(), "both keys or none")
	f.mustBeBusy(claim("held", time.Minute))

	held.Expiry = time.Hour
	require.True(t, f.extend(held))
	require.Greater(t, f.ttl("loki:{held}"), time.Minute)
	held.Expiry = 2 * time.Hour
	f.mustHold(held) // a renewal of a mirrored claim is a Lock
	require.Greater(t, f.ttl("loki:{held}"), time.Hour)
	f.release(held)
	require.Equal(t, []string{"loki:{held}:fence"}, f.keys())

	f.do("CONFIG", "SET", "maxmemory", "0")
	require.Equal(t, held.Token, f.mustHold(claim("held", time.Minute)).Released)
}

func TestTooFewReplicasIsUnavailable(t *testing.T) {
	f := newFixture(t)
	held := claim("held", time.Minute)
	f.mustHold(held)
	f.do("CONFIG", "SET", "min-replicas-to-write", "1")
	handler := redishandler.New(f.server.Client(t, noWait))
	for _, c := range []loki.Claim{held, claim("held", time.Minute), claim("free", time.Minute)} {
		_, err := handler.Lock(t.Context(), c)
		requireUnavailable(t, err, "NOREPLICAS")
	}
}

func TestARunningScriptIsUnavailable(t *testing.T) {
	f := newFixture(t)
	f.do("CONFIG", "SET", "lua-time-limit", "1")
	ended := make(chan error, 1)
	looping := f.server.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Minute })
	go func() { ended <- looping.Eval(context.WithoutCancel(t.Context()), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(f.redis.Ping(t.Context()).Err(), "BUSY ") }, patience, time.Millisecond)
	_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "BUSY")
	require.NoError(t, f.redis.ScriptKill(t.Context()).Err())
	require.Error(t, <-ended)
	f.mustHold(claim("k", time.Minute))
}

func TestTooManyClientsIsUnavailable(t *testing.T) {
	f := newFixture(t)
	f.mustHold(claim("k", time.Minute))
	f.do("CONFIG", "SET", "maxclients", "1")
	handler := redishandler.New(f.server.Client(t, noWait))
	_, err := handler.Lock(t.Context(), claim("k", time.Minute))
	require.Error(t, err)
	require.True(t, loki.IsUnavailable(err), "%v", err)
}

// The server says these when a disk is full, while it starts, and in a cluster that is changing.
func TestRepliesThatMeanUnavailable(t *testing.T) {
	f := newFixture(t)
	proxy := faultproxy.Start(t, f.server.Addr())
	f.handler = redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	for _, reply := range []string{
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN Hash slot not served",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR max number of clients reached",
		// Redis before 7.0 wraps what a command in a script got.
		"ERR Error running script (call to f_0123): @user_script:12: @user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
		"ERR Error running script (call to f_0123): @user_script:12: @user_script: 12: -READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_0123): @user_script:12: @user_script: 12: -MISCONF Redis is configured to save RDB snapshots.",
	} {
		fired := proxy.Answer(faultproxy.Containing("evalsha"), "-"+reply+"\r\n")
		_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
		<-fired
		requireUnavailable(t, err, raised(reply))
	}
	for _, reply := range []string{
		"ERR Error running script (call to f_0123): @user_script:12: WRONGTYPE Operation against a key holding the wrong kind of value",
		"ERR Error running script (call to f_0123): @user_script:12: @user_script: 12: NOPERM this user has no permissions",
		"ERR unknown command 'evalsha'",
		"MOVED 1 127.0.0.1:1", // to a client that does not follow it
		"BUSYKEY Target key name already exists.",
		"NOPERM no permission for the key ': -OOM '",
		"ERR something is wrong with '@user_script: 1: -OOM '",
	} {
		fired := proxy.Answer(faultproxy.Containing("evalsha"), "-"+reply+"\r\n")
		_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
		<-fired
		requireMistake(t, err, raised(reply))
	}
}

// raised is a reply without the place that Redis before 7.0 put before it.
func raised(reply string) string {
	if _, text, found := strings.Cut(reply, "@user_script:12: "); found {
		return strings.TrimPrefix(strings.TrimPrefix(text, "@user_script: 12: "), "-")
	}
	return reply
}

func TestCase077_EOFIsUnavailable(t *testing.T) {
	f := newFixture(t)
	f.handler = redishandler.New(f.server.Client(t, noWait))
	f.mustHold(claim("warm", time.Minute))
	_, err := redishandler.New(failing{fmt.Errorf("wrapped: %w", io.EOF)}).Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "EOF")
	require.ErrorIs(t, err, io.EOF)

	for range 20 { // a client that may retry does not show it
		require.NoError(t, f.redis.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
		c := claim("k", time.Minute)
		handler := redishandler.New(f.redis)
		_, err := handler.Lock(t.Context(), c)
		require.NoError(t, err)
		require.NoError(t, handler.Release(t.Context(), c))
	}
}

// failing is a client that has one answer.
type failing struct{ err error }

func (c failing) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(c.err)
	return cmd
}

func (c failing) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.EvalSha(ctx, script, keys, args...)
}

// reply is an error that a server sent.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// A cluster client returns these when it has followed as many as it may.
func TestRedirectsThatAClusterClientGaveUpAreUnavailable(t *testing.T) {
	for _, err := range []error{reply("MOVED 1 127.0.0.1:1"), reply("ASK 1 127.0.0.1:1")} {
		_, got := redishandler.New(failing{err}).Lock(t.Context(), claim("k", time.Minute))
		requireUnavailable(t, got, err.Error())
	}
}

func TestAFrozenServerIsUnavailable(t *testing.T) {
	f := newFixture(t)
	handler := redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond }))
	f.server.Stop(t)
	_, err := handler.Lock(t.Context(), claim("k", time.Minute))
	requireUnavailable(t, err, "timeout")
	f.server.Cont(t)
}

// The Locker decides whose context it was, so the handler does not call it an outage in words of its own.
func TestAnEndedContextIsReturnedAsItIs(t *testing.T) {
	f := newFixture(t)
	client := f.server.Client(t, noWait, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Minute })
	conn := client.Conn() // the pool is empty now, and a wait for it heeds the context
	require.NoError(t, conn.Ping(t.Context()).Err())
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := redishandler.New(client).Lock(ctx, claim("k", time.Minute))
	require.Equal(t, context.Canceled, err)
	require.NoError(t, conn.Close())
}
