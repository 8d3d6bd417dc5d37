package redishandler_test

// This file is the page on Redis: every command in it is run, and what it says of users, disks and memory is so.

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// documented returns the commands of the page's blocks in a language that have a text in them.
func documented(t *testing.T, language, text string) (commands [][]any) {
	t.Helper()
	page, err := os.ReadFile("../docs/redis.md")
	require.NoError(t, err)
	for i, block := range strings.Split(string(page), "\n```") {
		lines := strings.Split(block, "\n")
		if i%2 == 0 || lines[0] != language {
			continue
		}
		for _, line := range lines[1:] {
			if line == "" || !strings.Contains(line, text) {
				continue
			}
			var command []any
			for word := range strings.FieldsSeq(line) {
				command = append(command, word)
			}
			commands = append(commands, command)
		}
	}
	require.NotEmpty(t, commands, "the page has no %s with %q in it", language, text)
	return commands
}

func login(o *redis.Options) { o.Username, o.Password = "locks", "secret" }

func TestDocumentedSettingsAreThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, command := range documented(t, "redis", "CONFIG SET") {
		f.do(command...)
	}
}

func TestDocumentedPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	redistest.StartReplica(t, f.server.Addr())
	rules := documented(t, "redis", "ACL SETUSER")
	f.do(rules[0]...)
	client := f.server.Client(t, login)
	f.handler = redishandler.New(client)
	f.goThrough()

	ack := redishandler.WithReplicaAck(1, 4*time.Second)
	f.handler = redishandler.New(client, ack)
	unconfirmed := claim("k", time.Minute)
	_, err := f.handler.Lock(t.Context(), unconfirmed)
	requireMistake(t, err, "WAIT")
	f.release(unconfirmed)
	f.do(rules[1]...)
	f.goThrough()

	for _, args := range [][]any{{"GET", "other"}, {"SET", "other", "v"}, {"SUBSCRIBE", "other"}, {"CONFIG", "GET", "*"}, {"KEYS", "*"}} {
		require.True(t, redis.IsPermissionError(client.Do(t.Context(), args...).Err()), "%v", args)
	}
}

// Each permission of the page is needed: a list that grows is not the least any more.
func TestNoDocumentedPermissionIsTooMuch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rule := documented(t, "redis", "ACL SETUSER")[0]
	for i, permission := range rule {
		name, ok := strings.CutPrefix(permission.(string), "+")
		if !ok || name == "ping" || name == "unsubscribe" || name == "eval" || name == "info" { // of a long wait, of leaving, of a first time, of Check
			continue
		}
		f.do("ACL", "DELUSER", "locks")
		f.do(append(append([]any{}, rule[:i]...), rule[i+1:]...)...)
		h := redishandler.New(f.server.Client(t, login))
		a, b := mirrored(claim("k", time.Minute)), claim("k", time.Minute)
		told, err := h.Notify(t.Context(), "k")
		missing := err != nil
		for _, call := range calls(h, a) {
			missing = missing || call(t.Context()) != nil
		}
		_, err = h.Lock(t.Context(), a)
		missing = missing || err != nil
		_, err = h.Lock(t.Context(), b)
		missing = missing || err != nil
		missing = missing || h.Release(t.Context(), a) != nil
		if !missing {
			select {
			case <-told:
			case <-time.After(100 * time.Millisecond):
				missing = true
			}
		}
		require.True(t, missing, "+%s is not needed", name)
		f.do("FLUSHALL")
	}
}

func testClusterPermissions(t *testing.T, cluster *redistest.Cluster) {
	if !atLeast(t, cluster.Masters[0], 7) {
		t.Skip("before 7.0 there are no sharded messages, which the page says")
	}
	for _, node := range cluster.Masters {
		for _, command := range documented(t, "redis", "ACL SETUSER") {
			require.NoError(t, node.Client(t).Do(t.Context(), command...).Err())
		}
	}
	client := cluster.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = "locks", "secret" })
	f := &fixture{t: t, handler: redishandler.New(client)}
	f.goThrough()

	a := claim("moving", time.Hour)
	f.mustHold(a)
	move := startSlotMove(t, cluster, "loki:{moving}")
	move.migrate("loki:{moving}", "loki:{moving}:fence")
	require.True(t, f.extend(a))
	_, err := redishandler.New(client, redishandler.WithReplicaAck(1, 50*time.Millisecond)).Lock(t.Context(), a)
	requireUnavailable(t, err, "0 of 1 replicas") // and not NOPERM
	move.finish()
	f.release(a)
	f.goThrough()
}

func TestAServerThatWritesBeforeItAnswersKeepsLocksThroughACrash(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		f := newFixture(t)
		if kept {
			for _, command := range documented(t, "redis", "CONFIG SET append") {
				f.do(command...)
			}
			require.Eventually(t, func() bool { // the first rewrite
				return strings.Contains(f.redis.Info(t.Context(), "persistence").Val(), "aof_rewrite_in_progress:0")
			}, patience, 5*time.Millisecond)
		}
		a := claim("k", time.Hour)
		fence := f.mustHold(a).Fence
		f.server.Kill()
		if kept {
			f.server.Restart(t, "--appendonly", "yes")
			require.True(t, f.extend(a))
			require.Equal(t, fence, f.mustHold(a).Fence)
			f.mustBeBusy(claim("k", time.Hour))
			continue
		}
		f.server.Restart(t)
		require.False(t, f.extend(a))
		require.Greater(t, f.mustHold(claim("k", time.Hour)).Fence, fence)
	}
}

func TestVolatilePoliciesEvictLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fill := func() error {
		for range 2000 {
			if err := f.redis.RPush(t.Context(), "ballast", strings.Repeat("x", 10_000)).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	a := claim("k", time.Hour)
	f.mustHold(a)
	f.do("CONFIG", "SET", "maxmemory", "8mb")
	for _, command := range documented(t, "redis", "noeviction") {
		f.do(command...)
	}
	require.True(t, redis.IsOOMError(fill()))
	require.True(t, f.extend(a))

	f.do("DEL", "ballast")
	f.do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	require.Error(t, fill())
	require.False(t, f.extend(a), "it has been evicted")
}
