package redishandler_test

// This file is what ExtendAll does that the suite cannot see: with what else is stored there, for the server, and without a
// client of one server.

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

// extendAll extends claims, and returns which of them hold.
func (f *fixture) extendAll(claims ...loki.Claim) (held []bool) {
	f.t.Helper()
	answers, err := f.handler.ExtendAll(f.t.Context(), claims)
	require.NoError(f.t, err)
	require.Len(f.t, answers, len(claims))
	for _, a := range answers {
		require.NoError(f.t, a.Err)
		held = append(held, a.Held)
	}
	return held
}

func TestExtendAllIsOneCommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := claim("a", time.Minute), claim("b", time.Minute), claim("c", time.Minute)
	f.mustHold(a)
	f.mustHold(c)
	f.extendAll(a, b, c) // the server knows the script
	recorder := f.server.Record(t)
	require.Equal(t, []bool{true, false, true}, f.extendAll(a, b, c))
	require.Len(t, recorder.Sent(t), 1)
	require.Equal(t, []string{"get", "get", "pttl", "pexpire", "pexpire"}, f.scripted(func() { f.extendAll(a) })[1:], "after a look at the clock")
}

// What a key holds that is not a lock's concerns its claim alone, and is left as it was.
func TestExtendAllBesideSomethingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good, last := claim("good", time.Minute), claim("last", time.Minute)
	text, hash, fence := claim("text", time.Minute), claim("hash", time.Minute), claim("fence", time.Minute)
	f.mustHold(good)
	f.mustHold(last)
	f.mustHold(fence)
	f.do("SET", "loki:{text}", "something else")
	f.do("HSET", "loki:{hash}", "field", "value")
	f.do("SET", "loki:{fence}:fence", "no number")
	noToken, noExpiry := claim("k", time.Minute), claim("k", 0)
	noToken.Token = ""
	answers, err := f.handler.ExtendAll(t.Context(), []loki.Claim{noToken, text, good, hash, noExpiry, fence, last})
	require.NoError(t, err)
	for i, a := range answers {
		if i == 2 || i == 6 {
			require.Equal(t, loki.Extended{Held: true}, a)
			continue
		}
		require.False(t, a.Held, i)
		require.ErrorContains(t, a.Err, "redishandler: ", i)
		require.False(t, loki.IsUnavailable(a.Err), i)
	}
	for i, key := range map[int]string{1: "{text}", 3: "{hash}", 5: "{fence}"} {
		require.ErrorContains(t, answers[i].Err, "holds something that is not a lock")
		require.ErrorContains(t, answers[i].Err, key)
	}
	require.Equal(t, "something else", f.value("loki:{text}"))
}

func TestExtendAllKeepsWhatTheCompanionRemembers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old, c, other := mirrored(claim("k", 48*time.Hour)), mirrored(claim("k", time.Minute)), claim("other", time.Minute)
	f.mustHold(old)
	f.release(old)
	require.Equal(t, old.Token, f.mustHold(c).Released)
	f.mustHold(other)
	require.Equal(t, []bool{true, true}, f.extendAll(c, other))
	f.requireTTL("loki:{k}:fence", 48*time.Hour) // longer than the claim and a fence live
	require.Equal(t, old.Token, f.mustHold(c).Released)
}

func TestExtendAllWakesForAShorterExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := claim("k", time.Hour), claim("other", time.Hour)
	f.mustHold(c)
	f.mustHold(other)
	wakeUps, err := f.handler.Notify(t.Context(), "k")
	require.NoError(t, err)
	c.Expiry = time.Minute
	require.Equal(t, []bool{true, true}, f.extendAll(other, c))
	select {
	case <-wakeUps:
	case <-time.After(patience):
		require.Fail(t, "nobody was woken")
	}
}

func TestExtendAllWithLokiNetKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, redishandler.WithLokiNetKeys())
	a, b, c := claim("a", time.Minute), claim("b", time.Minute), claim("c", time.Minute)
	f.mustHold(a)
	f.do("SET", "b", "LokiNet's")
	f.mustHold(c)
	a.Expiry, c.Expiry = time.Hour, 2*time.Hour
	require.Equal(t, []bool{true, false, true}, f.extendAll(a, b, c))
	f.requireTTL("a", time.Hour)
	f.requireTTL("c", 2*time.Hour)
	require.Equal(t, "LokiNet's", f.value("b"))
}

// A replica may not extend: that is unavailable, and no "no".
func TestExtendAllAtAReplica(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, never := claim("k", time.Minute), claim("never", time.Minute)
	f.mustHold(c)
	f.do("REPLICAOF", "127.0.0.1", "1")
	answers, err := f.handler.ExtendAll(t.Context(), []loki.Claim{c, never})
	if err != nil {
		require.True(t, loki.IsUnavailable(err), err)
		return
	}
	for _, a := range answers {
		require.True(t, loki.IsUnavailable(a.Err), "%v", a.Err)
	}
}

// The locks of a ring or a cluster are on many servers.
func TestExtendAllNeedsAClientOfOneServer(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	for _, client := range []redishandler.Client{ring, cluster} {
		_, err := redishandler.New(client).ExtendAll(t.Context(), []loki.Claim{claim("k", time.Minute)})
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
}
