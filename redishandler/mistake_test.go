package redishandler_test

// This file is the errors that are somebody's mistake, and must not look like an outage.

import (
	"fmt"
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

func TestCase006_NoPermissionIsAMistake(t *testing.T) {
	f := newFixture(t)
	f.do("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+get", "+evalsha", "+eval", "+time")
	f.do("ACL", "SETUSER", "nobody", "on", "nopass", "~*", "+get")
	f.do("ACL", "SETUSER", "elsewhere", "on", "nopass", "~other:*", "+@all")
	for _, user := range []string{"reader", "nobody", "elsewhere"} {
		handler := redishandler.New(f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = user, "any" }))
		_, err := handler.Lock(t.Context(), claim("k", time.Minute))
		requireMistake(t, err, "NOPERM")
		require.ErrorContains(t, err, "the user of the server at "+f.server.Addr())
	}
	require.Empty(t, f.keys())
}

func TestAWrongPasswordIsAMistake(t *testing.T) {
	f := newFixture(t)
	f.do("ACL", "SETUSER", "locks", "on", ">right", "~*", "+@all")
	f.do("ACL", "SETUSER", "default", "resetpass", ">secret")
	for _, login := range [][2]string{{"locks", "wrong"}, {"", "wrong"}, {"", ""}} {
		handler := redishandler.New(f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = login[0], login[1] }))
		_, err := handler.Lock(t.Context(), claim("k", time.Minute))
		requireMistake(t, err, "check its Username and Password")
		require.True(t, redis.IsAuthError(err), "%v", err)
	}
}

func TestCase006_NewerServersUseOtherWords(t *testing.T) {
	err := reply("ERR ACL failure in script: User locks has no permissions to run the 'set' command")
	_, got := redishandler.New(failing{err}).Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, got, "NOPERM")
	require.ErrorIs(t, got, err)
}

// The package comment lists what a user of the server needs.
func TestTheDocumentedPermissionsAreEnough(t *testing.T) {
	f := newFixture(t)
	f.do("ACL", "SETUSER", "locks", "on", ">secret", "~loki:*",
		"+eval", "+evalsha", "+get", "+getex", "+set", "+del", "+pexpire", "+pttl", "+time")
	f.handler = redishandler.New(f.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }))
	a, b := mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute))
	f.mustHold(a)
	f.mustHold(a)
	f.mustBeBusy(b)
	require.True(t, f.extend(a))
	require.False(t, f.extend(b))
	_, held, err := f.handler.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	f.release(b)
	f.release(a)
}

func TestCase052_ForeignDataIsLeftAlone(t *testing.T) {
	server := newFixture(t)
	for _, stored := range [][]any{
		{"RPUSH", "a", "b"}, {"HSET", "field", "v"}, {"SADD", "a"}, {"SET", "somebody else's"}, {"SET", ""}, {"SET", "a b c d"}, {"SET", "12 monkeys"},
	} {
		for _, at := range []string{"loki:{k}", "loki:{k}:fence"} {
			for _, meanwhile := range []bool{false, true} {
				t.Run(fmt.Sprint(stored, " at ", at, ", put there while held: ", meanwhile), func(t *testing.T) {
					f := *server
					f.t = t
					f.do("FLUSHALL")
					c := mirrored(claim("k", time.Minute))
					if meanwhile {
						f.mustHold(c)
						f.do("DEL", at)
					}
					f.do(append([]any{stored[0], at}, stored[1:]...)...)
					dump := f.redis.Dump(t.Context(), at).Val()
					for name, call := range calls(f.handler, c) {
						if name == "Inspect" && at != "loki:{k}" {
							continue // it does not look at the companion
						}
						requireMistake(t, call(t.Context()), at+`"`)
						require.Equal(t, dump, f.redis.Dump(t.Context(), at).Val(), name)
						require.Equal(t, time.Duration(-1), f.ttl(at), "%s set an expiry", name)
					}
				})
			}
		}
	}
}

func TestCase052_WrongTypeUnderLokiNetKeys(t *testing.T) {
	f := newFixture(t, redishandler.WithLokiNetKeys())
	f.do("RPUSH", "k", "a")
	for _, call := range calls(f.handler, claim("k", time.Minute)) {
		requireMistake(t, call(t.Context()), `"k" holds something that is not a lock`)
	}
	require.Equal(t, []string{"a"}, f.redis.LRange(t.Context(), "k", 0, -1).Val())
}

func TestAServerThatIsNoRedisIsNoPanic(t *testing.T) {
	f := newFixture(t)
	proxy := faultproxy.Start(t, f.server.Addr())
	f.handler = redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	for _, reply := range []string{
		"*0\r\n", "*1\r\n:1\r\n", "*3\r\n+1\r\n+\r\n+x\r\n", "+1\r\n", ":-1\r\n", "$-1\r\n",
		"*2\r\n+1\r\n+x\r\n", "*2\r\n:-1\r\n+x\r\n", "*2\r\n:1\r\n:1\r\n",
		"*4\r\n:1\r\n+\r\n:1\r\n:1\r\n", "*4\r\n+t 1 1 h\r\n:1\r\n:1\r\n:1\r\n", "*4\r\n+t 1 1 h\r\n+\r\n+1\r\n:1\r\n",
		"*4\r\n+t 1 1 h\r\n+\r\n:1\r\n+1\r\n",
	} {
		fired := proxy.Answer(faultproxy.Containing("evalsha"), reply)
		_, err := f.handler.Lock(t.Context(), claim("k", time.Minute))
		<-fired
		require.Error(t, err, reply)
		require.False(t, loki.IsUnavailable(err))
	}
	for _, reply := range []string{":1\r\n", "*1\r\n+h\r\n", "*3\r\n+t 1 1 h\r\n:1\r\n+1\r\n"} {
		fired := proxy.Answer(faultproxy.Containing("evalsha"), reply)
		_, _, err := f.handler.Inspect(t.Context(), "k")
		<-fired
		requireMistake(t, err, "not one of the script's")
	}
	for _, reply := range []string{"+1\r\n", ":2\r\n", "*0\r\n"} {
		for _, op := range []func() error{
			func() error { _, err := f.handler.Extend(t.Context(), claim("k", time.Minute)); return err },
			func() error { return f.handler.Release(t.Context(), claim("k", time.Minute)) },
		} {
			fired := proxy.Answer(faultproxy.Containing("evalsha"), reply)
			err := op()
			<-fired
			requireMistake(t, err, "not one of the script's")
		}
	}
}

func TestCase092_AClosedClientIsAMistake(t *testing.T) {
	f := newFixture(t)
	client := redis.NewClient(&redis.Options{Addr: f.server.Addr()})
	require.NoError(t, client.Close())
	for name, call := range calls(redishandler.New(client), claim("k", time.Minute)) {
		err := call(t.Context())
		requireMistake(t, err, "closed")
		require.ErrorIs(t, err, redis.ErrClosed, name)
	}
}

// https://github.com/mike-marcacci/node-redlock/issues/304
func TestAServerWithoutScriptsIsAPermanentErrorWithoutTheToken(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	for name, c := range map[string]struct {
		server *redistest.Server
		advice string
	}{
		"a sentinel":  {redistest.StartSentinels(t, "locks", master, 0)[0], "redis.NewFailoverClient"},
		"no EVALSHA":  {redistest.Start(t, "--rename-command", "EVALSHA", ""), "EVAL and EVALSHA"},
		"no EVAL":     {redistest.Start(t, "--rename-command", "EVAL", ""), "EVAL and EVALSHA"},
		"another GET": {redistest.Start(t, "--rename-command", "GET", "FETCH"), "under another name: they need GET"},
		"no DEL":      {redistest.Start(t, "--rename-command", "DEL", ""), "they need GET, GETEX, SET, DEL"},
	} {
		t.Run(name, func(t *testing.T) {
			h := redishandler.New(c.server.Client(t))
			held := claim("k", time.Minute)
			var failed error
			for _, call := range []string{"Grant", "Extend", "Release"} {
				if err := calls(h, held)[call](t.Context()); err != nil {
					failed = err
					require.NotContains(t, err.Error(), held.Token)
				}
			}
			requireMistake(t, failed, c.advice)
		})
	}
}

func TestAnAnswerOfAnotherScriptIsNotRepeated(t *testing.T) {
	f := newFixture(t)
	proxy := faultproxy.Start(t, f.server.Addr())
	handler := redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	proxy.Answer(faultproxy.Containing("evalsha"), "*2\r\n+0\r\n+owner-token\r\n")
	_, err := handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "of 2 values is not one of the script's")
	require.NotContains(t, err.Error(), "owner-token")

	proxy.Answer(faultproxy.Containing("evalsha"), "-ERR "+strings.Repeat("x", 1<<20)+"\r\n")
	_, err = handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "ERR xxx")
	require.Less(t, len(err.Error()), 300)
}
