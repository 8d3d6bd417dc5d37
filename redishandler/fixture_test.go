package redishandler_test

// This file is what the tests of this package share.

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// patience is how long a test waits for something that should happen at once.
const patience = 5 * time.Second

// noWait has a client report an error at once instead of trying again.
func noWait(o *redis.Options) { o.MaxRetries = -1 }

// fixture is a server of the test's own, a plain client to look at it, and a handler to test.
type fixture struct {
	t       *testing.T
	server  *redistest.Server
	redis   *redis.Client
	handler *redishandler.Handler
}

func newFixture(t *testing.T, opts ...redishandler.Option) *fixture {
	server := redistest.Start(t)
	client := server.Client(t)
	return &fixture{t: t, server: server, redis: client, handler: redishandler.New(server.Client(t), opts...)}
}

var tokens atomic.Int64

// claim is a new acquisition, by a holder whose name shows which.
func claim(key string, expiry time.Duration) loki.Claim {
	n := tokens.Add(1)
	return loki.Claim{Key: key, Token: fmt.Sprintf("%032x", n), Expiry: expiry, Holder: fmt.Sprintf("host %d, process", n)}
}

func mirrored(c loki.Claim) loki.Claim {
	c.Mirrored = true
	return c
}

func (f *fixture) grant(c loki.Claim) loki.Grant {
	f.t.Helper()
	g, err := f.handler.Grant(f.t.Context(), c)
	require.NoError(f.t, err)
	return g
}

func (f *fixture) mustHold(c loki.Claim) loki.Grant {
	f.t.Helper()
	g := f.grant(c)
	require.True(f.t, g.Held, "held by %+v", g.HeldBy)
	return g
}

func (f *fixture) mustBeBusy(c loki.Claim) loki.Grant {
	f.t.Helper()
	g := f.grant(c)
	require.False(f.t, g.Held)
	return g
}

func (f *fixture) release(c loki.Claim) {
	f.t.Helper()
	require.NoError(f.t, f.handler.Release(f.t.Context(), c))
}

func (f *fixture) extend(c loki.Claim) bool {
	f.t.Helper()
	held, err := f.handler.Extend(f.t.Context(), c)
	require.NoError(f.t, err)
	return held
}

func (f *fixture) value(key string) string {
	f.t.Helper()
	return f.redis.Get(f.t.Context(), key).Val()
}

func (f *fixture) ttl(key string) time.Duration {
	f.t.Helper()
	ttl, err := f.redis.PTTL(f.t.Context(), key).Result()
	require.NoError(f.t, err)
	return ttl
}

// requireTTL demands that key ends after d, counted from a moment ago.
func (f *fixture) requireTTL(key string, d time.Duration) {
	f.t.Helper()
	ttl := f.ttl(key)
	require.LessOrEqual(f.t, ttl, d, key)
	require.Greater(f.t, ttl, d-patience, key)
}

func (f *fixture) keys() []string {
	f.t.Helper()
	return f.redis.Keys(f.t.Context(), "*").Val()
}

func (f *fixture) do(args ...any) {
	f.t.Helper()
	require.NoError(f.t, f.redis.Do(f.t.Context(), args...).Err())
}

// requireUnavailable demands an outage of the store, with the text that says which.
func requireUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.True(t, loki.IsUnavailable(err), "%v is not taken for an outage", err)
	requireWords(t, err)
}

// requireMistake demands an error that must not make a Locker fall back.
func requireMistake(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.False(t, loki.IsUnavailable(err), "%v is taken for an outage", err)
	requireWords(t, err)
}

// requireWords demands what holds of the text of every error: it names the package, once a line, and no place in a script.
func requireWords(t *testing.T, err error) {
	t.Helper()
	for line := range strings.Lines(err.Error()) {
		require.Equal(t, 1, strings.Count(line, "redishandler: "), line)
	}
	require.NotContains(t, err.Error(), ", on @user_script:")
	require.NotContains(t, err.Error(), "(call to f_")
}

// calls are the operations that answer about a claim, for what has to be so in each.
func calls(h *redishandler.Handler, c loki.Claim) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Lock":    func(ctx context.Context) error { _, err := h.Lock(ctx, c); return err },
		"Grant":   func(ctx context.Context) error { _, err := h.Grant(ctx, c); return err },
		"Extend":  func(ctx context.Context) error { _, err := h.Extend(ctx, c); return err },
		"Release": func(ctx context.Context) error { return h.Release(ctx, c) },
		"Inspect": func(ctx context.Context) error { _, _, err := h.Inspect(ctx, c.Key); return err },
	}
}
