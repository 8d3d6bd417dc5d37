package redishandler_test

// This file is the commands that are sent twice, refused once, or no longer known.

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/redishandler"
)

// proxied puts a proxy between the fixture's handler and its server. The client retries, as it does by default.
func (f *fixture) proxied() *faultproxy.Proxy {
	proxy := faultproxy.Start(f.t, f.server.Addr())
	f.handler = redishandler.New(f.server.Client(f.t, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	return proxy
}

func TestCase001_ALostReplyIsNotBusy(t *testing.T) {
	f := newFixture(t)
	proxy := f.proxied()
	a, b := mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute))

	lost := proxy.LoseReply(faultproxy.Containing("$4\r\neval\r\n")) // the script goes as a text, the first time
	first := f.mustHold(a)
	<-lost
	require.Equal(t, first, f.mustHold(a), "one acquisition, one fence")
	require.True(t, f.extend(a))
	f.release(a)

	// losing loses the first reply to do, by when the server has the scripts.
	losing := func(do func()) {
		lost := proxy.LoseReply(faultproxy.Containing("evalsha"))
		do()
		<-lost
	}
	losing(func() {
		require.Equal(t, a.Token, f.mustHold(b).Released, "the second answer tells what the first told")
	})
	losing(func() { require.True(t, f.extend(b)) })
	losing(func() { f.release(b) })
	require.Equal(t, b.Token, f.mustHold(claim("k", time.Minute)).Released)
}

func TestCase073_ScriptsMayBeForgottenAtAnyTime(t *testing.T) {
	f := newFixture(t)
	c := mirrored(claim("k", time.Minute))
	flush := func() { require.NoError(t, f.redis.ScriptFlush(t.Context()).Err()) }
	f.mustHold(c)
	flush()
	f.mustHold(c)
	flush()
	require.True(t, f.extend(c))
	flush()
	f.mustBeBusy(claim("k", time.Minute))
	flush()
	_, held, err := f.handler.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	flush()
	f.release(c)
	require.Equal(t, []string{"loki:{k}:fence"}, f.keys())
}

func TestCase075_ARefusedReleaseIsReported(t *testing.T) {
	f := newFixture(t)
	proxy := f.proxied()
	c := claim("k", time.Minute)
	f.mustHold(c)
	f.release(c)
	f.mustHold(c)
	refused := proxy.Answer(faultproxy.Containing("evalsha"), "-MISCONF Redis is configured to save RDB snapshots\r\n")
	requireUnavailable(t, f.handler.Release(t.Context(), c), "MISCONF")
	<-refused
	f.release(c)
	require.Empty(t, f.value("loki:{k}"))
}

func TestCase098_AConnectionLostAfterEachWriteLeavesNoKeyWithoutExpiry(t *testing.T) {
	f := newFixture(t)
	proxy := f.proxied()
	for range 50 {
		c := claim("k", time.Minute)
		proxy.LoseReply(faultproxy.Containing("eval"))
		f.mustHold(c)
		for _, key := range f.keys() {
			require.Positive(t, f.ttl(key))
		}
		proxy.PassThrough()
		f.release(c)
	}
}
