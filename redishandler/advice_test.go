package redishandler_test

// This file is what an error says of its cause, and what to do.

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
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

// minimal is what docs/redis.md gives a user.
func minimal(t *testing.T) (rules []string) {
	t.Helper()
	for _, word := range documented(t, "redis", "ACL SETUSER")[0][5:] { // after ACL SETUSER locks on >secret
		rules = append(rules, word.(string))
	}
	return rules
}

// setUser makes a user called locks and returns a change for its client.
func (f *fixture) setUser(rules ...string) func(*redis.Options) {
	f.t.Helper()
	args := []any{"ACL", "SETUSER", "locks", "reset", "on", ">secret"}
	for _, rule := range rules {
		args = append(args, rule)
	}
	f.do(args...)
	return func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }
}

// listen answers every connection, after its first bytes, with a text, and closes it. Without one it neither answers nor
// closes.
func listen(t *testing.T, answer string, closes bool) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = conn.Write([]byte(answer))
				if !closes {
					<-t.Context().Done()
				}
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func TestTheDocumentedUserGetsNoAdvice(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, server: redistest.Start(t, durable...)}
	f.redis = f.server.Client(t)
	require.NoError(t, redishandler.Check(t.Context(), f.server.Client(t, f.setUser(minimal(t)...))))
}

func TestACommandThatBeginsAConnectionIsNamedWhenItIsRefused(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, server: redistest.Start(t, durable...)}
	f.redis = f.server.Client(t)
	login := f.setUser(minimal(t)...)
	for text, change := range map[string]func(*redis.Options){
		"may not run SELECT, with which the client begins a connection (NOPERM): run ACL SETUSER locks +select, or leave": func(o *redis.Options) { o.DB = 1 },
		"run ACL SETUSER locks +client|setname, or leave":                                                                 func(o *redis.Options) { o.ClientName = "billing" },
		"has no such database: check the client's DB":                                                                     func(o *redis.Options) { o.Username, o.Password, o.DB = "", "", 99 },
	} {
		client := f.server.Client(t, login, change)
		err := redishandler.Check(t.Context(), client)
		requireFault(t, err, text)
		require.NotContains(t, err.Error(), "\n", "one cause, one line")
		require.NotContains(t, strings.ToLower(err.Error()), "eval")
		require.ErrorContains(t, err, f.server.Addr())
		for _, call := range calls(redishandler.New(client), claim("k", time.Minute)) {
			err := call(t.Context())
			requireMistake(t, err, text)
			require.NotContains(t, strings.ToLower(err.Error()), "eval")
		}
	}
}

func TestAPermissionThatTheServerNamesIsTheOnlyOneInTheText(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	handler := redishandler.New(f.server.Client(t, f.setUser("~loki:*", "+get")))
	_, err := handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "may not run EVALSHA (NOPERM): run ACL SETUSER locks +evalsha; Check names all that is missing: NOPERM")
	require.NotContains(t, err.Error(), "PEXPIRE")

	handler = redishandler.New(f.server.Client(t, f.setUser("~other:*", "+@all")))
	_, err = handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, `may not use keys such as "loki:{k}" (NOPERM): run ACL SETUSER locks ~loki:*: `)

	handler = redishandler.New(f.server.Client(t, f.setUser("~loki:*", "+@all", "resetchannels", "&other:*")))
	_, err = handler.Notify(t.Context(), "k")
	requireMistake(t, err, `may not use channels such as "loki:{k}:free" (NOPERM): run ACL SETUSER locks &loki:*: `)

	text := "ERR ACL failure in script: User locks has no permissions to run the 'set' command script: " + strings.Repeat("0a", 20) + ", on @user_script:150."
	_, err = redishandler.New(failing{reply(text)}).Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "may not run SET (NOPERM): run ACL SETUSER default +set; ")
}

func TestCheckNamesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, server: redistest.Start(t, durable...)}
	f.redis = f.server.Client(t)
	check := func(left, instead string) error {
		rules := minimal(t)
		rules[slices.Index(rules, left)] = instead
		err := redishandler.Check(t.Context(), f.server.Client(t, f.setUser(rules...)))
		require.Error(t, err)
		return err
	}
	err := check("~loki:*", "~other:*")
	requireFault(t, err, "may not use keys such as")
	require.ErrorContains(t, err, "run ACL SETUSER locks ~loki:*")
	require.NotContains(t, err.Error(), "+")
	for left, text := range map[string]string{"&loki:*": "may not use channels such as", "+publish": "may not run PUBLISH", "+subscribe": "may not run SUBSCRIBE"} {
		err := check(left, "-wait")
		requireAdvice(t, err, text)
		require.True(t, strings.HasSuffix(err.Error(), "run ACL SETUSER locks "+left), "%v", err)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestAnErrorNamesAPortThatIsNotRedis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer, text string
		outage       bool
	}{
		"closes, as PostgreSQL does": {"", "this may not be the port of a Redis server", true},
		"HTTP":                       {"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer as Redis does: check whether this is its port", false},
		"older HTTP":                 {"<!DOCTYPE HTML>\n" + strings.Repeat("<p>\n", 1000), "does not answer as Redis does: check whether this is its port", false},
		"a long line":                {strings.Repeat("<p>", 10_000) + "\n", "does not answer as Redis does: check whether this is its port", false},
	} {
		client := redis.NewClient(&redis.Options{Addr: listen(t, c.answer, true), MaxRetries: -1})
		defer func() { require.NoError(t, client.Close()) }()
		_, err := redishandler.New(client).Lock(t.Context(), claim("k", time.Minute))
		for _, err := range []error{err, redishandler.Check(t.Context(), client)} {
			require.ErrorContains(t, err, c.text, name)
			require.ErrorContains(t, err, client.Options().Addr, name)
			require.Equal(t, c.outage, loki.IsUnavailable(err), "%s: %v", name, err)
			require.Less(t, len(err.Error()), 450, name)
			require.NotContains(t, err.Error(), "\n", name)
		}
	}
}

// A server without a login answers a request that is long as such.
func TestALoginThatIsMissingIsOneErrorHoweverItIsSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var texts []string
	for _, said := range []string{"ERR Protocol error: unauthenticated multibulk length", "ERR Protocol error: unauthenticated bulk length", "NOAUTH Authentication required."} {
		_, err := redishandler.New(failing{reply(said)}).Lock(t.Context(), claim("k", time.Minute))
		requireMistake(t, err, "check its Username and Password")
		texts = append(texts, err.Error())
	}
	require.Equal(t, texts[2], texts[0])
	require.Equal(t, texts[2], texts[1])
	proxy := faultproxy.Start(t, f.server.Addr())
	handler := redishandler.New(f.server.Client(t, noWait, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	proxy.Answer(faultproxy.Containing("evalsha"), "-ERR Protocol error: unauthenticated multibulk length\r\n")
	_, err := handler.Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "NOAUTH")
	require.True(t, redis.IsAuthError(err))
}

func TestACallOverTLSOfAServerWithoutSaysSo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} })
	locker, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(redishandler.New(client)).Build()
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close(context.WithoutCancel(t.Context()))) }()
	var last error
	require.Eventually(t, func() bool { // a busy machine may take longer than a call may
		last = locker.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil })
		return last != nil && strings.Contains(last.Error(), "does not speak TLS at this port")
	}, failoverPatience, time.Millisecond)
	requireMistake(t, last, server.Addr())
	require.NotErrorIs(t, last, loki.ErrUnavailable)
}

func TestACallOfAReplicaNamesItsMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master.Addr())
	for name, call := range calls(redishandler.New(replica.Client(t, noWait)), claim("k", time.Minute)) {
		if name == "Inspect" {
			continue // a replica may answer
		}
		err := call(t.Context())
		requireUnavailable(t, err, "redishandler: the server at "+replica.Addr()+" is a replica, which cannot be written to: name its master")
		require.ErrorContains(t, err, "or have Sentinel name it (redis.NewFailoverClient): READONLY ")
		require.True(t, strings.HasSuffix(err.Error(), "."), "%v", err)
	}
	handler := redishandler.New(replica.Client(t, noWait))
	require.Eventually(t, func() bool {
		_, err := handler.Lock(t.Context(), claim("k", time.Minute))
		if err != nil && !strings.Contains(err.Error(), "which is ") { // it is asked once in a while
			handler = redishandler.New(replica.Client(t, noWait))
		}
		return err != nil && strings.Contains(err.Error(), "which is \""+master.Addr()+"\"")
	}, failoverPatience, time.Millisecond)
}

func TestWhatIsRaisedInAScriptSaysNothingOfThePlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lock := func(said string) {
		handler := redishandler.New(f.server.Client(t, noWait))
		_, err := handler.Lock(t.Context(), claim("k", time.Minute))
		requireUnavailable(t, err, "redishandler: the server at "+f.server.Addr()+": "+said)
	}
	f.do("CONFIG", "SET", "maxmemory", "1")
	lock("OOM ")
	f.do("CONFIG", "SET", "maxmemory", "0")
	f.do("CONFIG", "SET", "min-replicas-to-write", "5")
	lock("NOREPLICAS ")
}

func TestCheckOfASilentServerEndsByItself(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: listen(t, "", false), ReadTimeout: time.Minute})
	defer func() { require.NoError(t, client.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := redishandler.Check(ctx, client)
	require.NoError(t, ctx.Err())
	requireUnavailable(t, err, "redishandler: no answer to the check within 10")
	require.ErrorContains(t, err, "from the server at "+client.Options().Addr)
}

func TestATimeoutNamesTheServer(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: listen(t, "", false), MaxRetries: -1, ReadTimeout: 10 * time.Millisecond})
	defer func() { require.NoError(t, client.Close()) }()
	err := redishandler.Check(t.Context(), client)
	requireUnavailable(t, err, client.Options().Addr)
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout())
}

// A reader of several lines sees which of them are faults.
func TestAdviceIsMarkedAsSuchInEachLine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	err := redishandler.Check(t.Context(), f.server.Client(t, f.setUser(minimal(t)...)))
	requireAdvice(t, err, "appendonly")
	err = redishandler.Check(t.Context(), f.server.Client(t, f.setUser(append(minimal(t), "-del")...)))
	requireFault(t, err, "DEL")
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 2)
	require.NotContains(t, lines[0], "advice")
	require.True(t, strings.HasPrefix(lines[1], "redishandler: advice: "), lines[1])
}
