package loki_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/stretchr/testify/require"
)

// documentedCommand is what follows redis-cli on the page on operations, for the first command with that name, on the lock "job".
func documentedCommand(t *testing.T, name string) (args []any) {
	t.Helper()
	page, err := os.ReadFile("docs/operations.md")
	require.NoError(t, err)
	line := regexp.MustCompile("(?m)^redis-cli " + name + " .*$").FindString(string(page))
	require.NotEmpty(t, line)
	line = strings.ReplaceAll(strings.TrimPrefix(line, "redis-cli "), "invoice-batch", "job")
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		args = append(args, strings.Trim(word, "'"))
	}
	return args
}

// What docs/operations.md has for taking a lock away.
func TestOnCall_TakingALockFromItsHolder(t *testing.T) {
	const expiry = 1500 * time.Millisecond
	t.Run("delete the key", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		h := hold(t, instance(t, r.handler(), nil), expiry)
		require.NoError(t, r.direct.Do(t.Context(), documentedCommand(t, "del")...).Err())
		_ = h.requireLost(loki.ErrNotHeld)
		require.ErrorIs(t, h.end(), loki.ErrNotHeld)
	})
	t.Run("put somebody else in its place", func(t *testing.T) {
		t.Parallel()
		r, s := startRedis(t), memoryStore(t)
		h := hold(t, instance(t, r.handler(), s), expiry)
		s.requireRow("job")
		require.NoError(t, r.direct.Do(t.Context(), documentedCommand(t, "set")...).Err())
		other := loki.Claim{Key: "job", Token: "0", Holder: "on call", Expiry: 30 * time.Second, Supersedes: s.token("job")}
		held, err := s.Lock(t.Context(), other) // in SQL, an UPDATE of the row
		require.NoError(t, err)
		require.True(t, held)
		_ = h.requireLost(loki.ErrLockLost)
		require.ErrorIs(t, h.end(), loki.ErrLockLost)
		require.Equal(t, "0 0 0 on call", r.direct.Get(t.Context(), "loki:{job}").Val(), "what is in its place stays there")
		holder, held := s.row("job")
		require.True(t, held)
		require.Equal(t, "on call", holder.ID)
	})
}
