package redishandler_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

func notifyClaim(key, token string) loki.Claim {
	return loki.Claim{Key: key, Token: token, Expiry: time.Minute, Holder: "a test"}
}

func hold(t *testing.T, h *redishandler.Handler, c loki.Claim) {
	t.Helper()
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
}

// requireTold waits for a value, and for no more than a slow machine needs.
func requireTold(t *testing.T, told <-chan struct{}) {
	t.Helper()
	select {
	case _, ok := <-told:
		require.True(t, ok, "the channel is closed")
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, 10*time.Second, 5*time.Millisecond, message)
}

// channels are what the server has subscriptions for.
func channels(t *testing.T, rdb *redis.Client) []string {
	t.Helper()
	names, err := rdb.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return names
}

func TestNotify_TellsOfReleaseAndShorterExpiry(t *testing.T) {
	server := redistest.Start(t)
	h := redishandler.New(server.Client(t))
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	other, err := h.Notify(t.Context(), "another")
	require.NoError(t, err)

	c := notifyClaim("job", "mine")
	hold(t, h, c)
	require.NoError(t, h.Release(t.Context(), c))
	requireTold(t, told)

	hold(t, h, c)
	c.Expiry = time.Second
	held, err := h.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	requireTold(t, told)

	c.Expiry = 500 * time.Millisecond
	hold(t, h, c)
	requireTold(t, told)

	c.Quiet = true
	require.NoError(t, h.Release(t.Context(), c))
	// What is published after the quiet release comes after it, if at all.
	loud := notifyClaim("another", "mine")
	hold(t, h, loud)
	require.NoError(t, h.Release(t.Context(), loud))
	requireTold(t, other)
	require.Empty(t, told, "a quiet release wakes nobody, and neither does another lock's")
}

func TestNotify_NothingIsLeft(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	h := redishandler.New(rdb)
	clients := func() int {
		list, err := rdb.ClientList(t.Context()).Result()
		require.NoError(t, err)
		return strings.Count(list, "sub=")
	}
	subscribed := func() int {
		list, err := rdb.ClientList(t.Context()).Result()
		require.NoError(t, err)
		return strings.Count(list, "cmd=subscribe") + strings.Count(list, "cmd=unsubscribe")
	}
	require.Zero(t, subscribed())
	before := clients()
	for round := range 10 {
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 50 {
			wg.Go(func() {
				_, err := h.Notify(ctx, fmt.Sprint("job", i%25))
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Len(t, channels(t, rdb), 25, "round %d", round)
		require.Equal(t, 1, subscribed(), "all share one connection")
		cancel()
		eventually(t, func() bool { return len(channels(t, rdb)) == 0 && subscribed() == 0 }, "a subscription is left")
	}
	require.LessOrEqual(t, clients(), before+10, "connections pile up") // the pool's own, for PUBSUB CHANNELS among others
}

func TestNotify_ABrokenConnectionIsRestored(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	h := redishandler.New(rdb)
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	requireTold(t, told) // something may have been missed

	c := notifyClaim("job", "mine")
	hold(t, h, c)
	require.NoError(t, h.Release(t.Context(), c))
	requireTold(t, told)
}

func TestNotify_AClientThatItsOwnerClosed(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	h := redishandler.New(rdb)
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, rdb.Close())
	require.NoError(t, server.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	require.Eventually(t, func() bool {
		select {
		case _, ok := <-told:
			return !ok
		default:
			return false
		}
	}, 10*time.Second, 5*time.Millisecond, "the channel stays open although nothing can come any more")
	_, err = h.Notify(t.Context(), "job")
	require.ErrorIs(t, err, redis.ErrClosed)
	require.False(t, loki.IsUnavailable(err))
}

func TestNotify_FailsWithoutTheServer(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.DialTimeout, o.DialerRetries = time.Second, 1 })
	h := redishandler.New(rdb)
	server.Kill()
	_, err := h.Notify(t.Context(), "job")
	require.Error(t, err)
	require.True(t, loki.IsUnavailable(err), "%v", err)
	server.Restart(t)
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	c := notifyClaim("job", "mine")
	hold(t, h, c)
	require.NoError(t, h.Release(t.Context(), c))
	requireTold(t, told)
}

func TestNotify_AUserWhoMayNotPublishLocksAllTheSame(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">secret", "~loki:*",
		"+eval", "+evalsha", "+get", "+getex", "+set", "+del", "+pexpire", "+pttl", "+time").Err())
	h := redishandler.New(server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }))
	c := notifyClaim("job", "mine")
	hold(t, h, c)
	require.NoError(t, h.Release(t.Context(), c))
	require.Zero(t, admin.Exists(t.Context(), "loki:{job}").Val())
	_, err := h.Notify(t.Context(), "job")
	requireMistake(t, err, "SUBSCRIBE")
	require.True(t, redis.IsPermissionError(err), "%v", err)
	require.Empty(t, channels(t, admin))
}

// A listener that leaves must not take the next one's subscription with it.
func TestNotify_ComingAndGoing(t *testing.T) {
	server := redistest.Start(t)
	h := redishandler.New(server.Client(t))
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := h.Notify(ctx, "job")
		require.NoError(t, err)
		go cancel()
		stay, leave := context.WithCancel(t.Context())
		told, err := h.Notify(stay, "job")
		require.NoError(t, err)
		c := notifyClaim("job", "mine")
		hold(t, h, c)
		require.NoError(t, h.Release(t.Context(), c))
		requireTold(t, told)
		leave()
	}
}

// A waiter that stands in line for long is the one whose connection is forgotten.
//
// https://github.com/redis/go-redis/issues/941
func TestNotify_FindsThatItsConnectionHasDied(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n, client := f.natted()
	h := redishandler.New(client)
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	n.forget()
	select { // by the new connection
	case <-told:
	case <-time.After(6 * patience):
		t.Fatal("nobody noticed")
	}
	c := notifyClaim("job", "a")
	hold(t, f.handler, c)
	require.NoError(t, f.handler.Release(t.Context(), c))
	requireTold(t, told)
}
