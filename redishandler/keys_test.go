package redishandler_test

// This file is the names of keys: distinct, and both of a lock in one slot.

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// keyWriter is a client that takes note of the keys and is out of reach.
type keyWriter struct{ keys []string }

var errOutOfReach = errors.New("out of reach")

func (w *keyWriter) EvalSha(ctx context.Context, _ string, keys []string, _ ...any) *redis.Cmd {
	w.keys = keys
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(errOutOfReach)
	return cmd
}

func (w *keyWriter) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return w.EvalSha(ctx, script, keys, args...)
}

// keysOf are the keys in Redis of the lock called key.
func keysOf(t *testing.T, key string, opts ...redishandler.Option) []string {
	t.Helper()
	w := &keyWriter{}
	_, err := redishandler.New(w, opts...).Lock(t.Context(), claim(key, time.Minute))
	require.ErrorIs(t, err, errOutOfReach)
	return w.keys
}

func TestKeys(t *testing.T) {
	for _, test := range []struct {
		key  string
		opts []redishandler.Option
		want string
	}{
		{key: "invoice-batch", want: "loki:{invoice-batch}"},
		{key: "invoices/eu%2Fde", want: "loki:{invoices/eu%2Fde}"},
		{key: "{a}", want: "loki:{%7Ba%7D}"},
		{key: "100%", want: "loki:{100%}"},
		{key: "100%25", want: "loki:{100%2525}"},
		{key: "%7B{", want: "loki:{%257B%7B}"},
		{key: "счета 日本 🔒", want: "loki:{счета 日本 🔒}"},
		{key: "a:fence", want: "loki:{a:fence}"},
		{key: "k", opts: []redishandler.Option{redishandler.WithPrefix("app/locks:")}, want: "app/locks:{k}"},
		{key: "k", opts: []redishandler.Option{redishandler.WithPrefix("")}, want: "{k}"},
	} {
		require.Equal(t, []string{test.want, test.want + ":fence"}, keysOf(t, test.key, test.opts...))
	}
}

func TestLokiNetKeys(t *testing.T) {
	for key, want := range map[string]string{
		"invoice-batch":       "invoice-batch",
		"with {braces}":       "with {braces}",
		"loki:k":              "loki:k",
		"invoices%2Feu":       "invoices/eu",             // the service key "invoices/eu"
		"invoices/eu":         "loki:{invoices/eu}",      // the resource "eu": no lock of LokiNet's
		"100%25":              "100%",                    // the service key "100%"
		"100%2525":            "100%25",                  // the service key "100%25"
		"a%2Fb/c":             "loki:{a%2Fb/c}",          // the resource "c"
		"loki:{a%2Fb}":        "loki:{loki:%7Ba%2Fb%7D}", // would be the key of the resource "b"
		"100%, as if encoded": "loki:{100%, as if encoded}",
	} {
		require.Equal(t, []string{want}, keysOf(t, key, redishandler.WithLokiNetKeys()))
	}
}

var nastyKeys = []string{
	"a", "A", "{a}", "}a{", "a}", "{a", "{}", "{", "}", "{}a", "{a}{b}", "%7Ba%7D", "%7B", "%7D", "%", "%25", "%257B", "%2", "%%",
	"a:fence", "{a}:fence", "a/b", "a%2Fb", "a%252Fb", "a%2fb", "loki:{a}", "loki:{a}:fence", "loki:{a/b}", "loki:{a%2Fb}", "loki:", ":",
	" ", " a", "a ", "\t", "a\nb", "\x00", "a\x00b", "\xff", "\xff\xfe", "é", "e\u0301", "日本", "🔒", "склад", "*", "?", "[a]", "\\", "\"", "'",
	strings.Repeat("x", 400), strings.Repeat("{", 400),
}

func TestNoTwoLocksShareAKey(t *testing.T) {
	for name, opts := range map[string][]redishandler.Option{
		"own": nil, "no prefix": {redishandler.WithPrefix("")}, "LokiNet": {redishandler.WithLokiNetKeys()},
	} {
		owner := map[string]string{}
		for _, key := range nastyKeys {
			for _, stored := range keysOf(t, key, opts...) {
				other, taken := owner[stored]
				require.False(t, taken, "%s: %q and %q meet at %q", name, key, other, stored)
				owner[stored] = key
			}
		}
	}
}

// A cluster keeps both keys of a lock in one slot, or the script could not run.
func TestBothKeysAreInOneSlot(t *testing.T) {
	client := redistest.Start(t, "--cluster-enabled", "yes").Client(t)
	slots := map[int64]bool{}
	for _, key := range nastyKeys {
		for _, opts := range [][]redishandler.Option{nil, {redishandler.WithPrefix("")}, {redishandler.WithPrefix("a:")}} {
			keys := keysOf(t, key, opts...)
			lock, err := client.ClusterKeySlot(t.Context(), keys[0]).Result()
			require.NoError(t, err)
			require.Equal(t, lock, client.ClusterKeySlot(t.Context(), keys[1]).Val(), "%q", keys)
			slots[lock] = true
		}
	}
	require.Greater(t, len(slots), len(nastyKeys)/2, "locks are to be spread over the slots")
}

// FuzzKeys looks for two locks that share a key, and for a lock whose keys have different hash tags.
func FuzzKeys(f *testing.F) {
	for i, key := range nastyKeys {
		f.Add(key, nastyKeys[(i+1)%len(nastyKeys)])
		f.Add(key, strings.NewReplacer("{", "%7B", "}", "%7D", "%2F", "/").Replace(key))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			t.Skip("a key is never empty")
		}
		for _, opts := range [][]redishandler.Option{nil, {redishandler.WithLokiNetKeys()}} {
			ofA, ofB := keysOf(t, a, opts...), keysOf(t, b, opts...)
			for _, key := range ofA {
				if a != b {
					require.NotContains(t, ofB, key, "%q and %q", a, b)
				}
				if opts == nil {
					require.NotEmpty(t, hashTag(key))
					require.Equal(t, hashTag(ofA[0]), hashTag(key))
				}
			}
		}
	})
}

// hashTag is Redis Cluster's rule: what is between the first "{" and the next "}", if there is something.
func hashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}

func TestLocksWithNastyKeysAreApart(t *testing.T) {
	f := newFixture(t)
	var claims []loki.Claim
	for _, key := range nastyKeys {
		c := claim(key, time.Minute)
		f.mustHold(c)
		claims = append(claims, c)
	}
	for i, c := range claims {
		for _, other := range claims[i:] {
			require.True(t, f.extend(other))
		}
		f.release(c)
		require.False(t, f.extend(c))
	}
}
