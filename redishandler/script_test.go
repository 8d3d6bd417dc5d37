package redishandler_test

// This file is what the scripts decide first, what that costs the server, and what they leave to the rest of them.

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redishandler"
)

// scripted returns the names of the commands that scripts send during do.
func (f *fixture) scripted(do func()) (names []string) {
	f.t.Helper()
	recorder := f.server.Record(f.t)
	do()
	for _, c := range recorder.Scripted(f.t) {
		names = append(names, c.Name())
	}
	return names
}

func TestTheCommonCaseIsFewCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := claim("k", time.Minute), claim("k", time.Minute)
	require.Equal(t, []string{"get", "get", "time", "set", "set"}, f.scripted(func() { f.mustHold(a) }), "new")
	require.Equal(t, []string{"get", "get", "time", "pttl", "getex"}, f.scripted(func() { f.mustBeBusy(b) }))
	require.Equal(t, []string{"get", "get", "pttl", "pexpire", "pexpire"}, f.scripted(func() { require.True(t, f.extend(a)) }))
	require.Equal(t, []string{"get", "del", "publish"}, f.scripted(func() { f.release(a) }))
	require.Equal(t, []string{"get", "get", "time", "set", "set"}, f.scripted(func() { f.mustHold(b) }), "with a fence that is remembered")
	b.Quiet = true
	require.NotContains(t, f.scripted(func() { f.release(b) }), "publish")
}

// The companion stays as it is: it has longer to live than a fence is remembered, and not much.
func TestReleaseLeavesTheCompanionItsTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := claim("k", 5*time.Hour)
	f.mustHold(c)
	c.Expiry = time.Hour
	require.True(t, f.extend(c))
	f.requireTTL("loki:{k}:fence", time.Hour+redishandler.DefaultFenceTTL)
	f.release(c)
	f.requireTTL("loki:{k}:fence", time.Hour+redishandler.DefaultFenceTTL)
}

func TestATokenThatBeginsAsTheHoldersHasNoPartInIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	short, long := claim("k", time.Minute), claim("k", time.Minute)
	long.Token = short.Token + "0"
	f.mustHold(long)
	require.Equal(t, long.Holder, f.mustBeBusy(short).HeldBy.ID)
	require.False(t, f.extend(short))
	f.release(short)
	require.True(t, f.extend(long), "it was released by another token")
	f.release(long)

	f.mustHold(short)
	require.Equal(t, short.Holder, f.mustBeBusy(long).HeldBy.ID)
	require.False(t, f.extend(long))
	f.release(long)
	require.True(t, f.extend(short), "it was released by another token")
}

// A string that Lua takes for a number need not be a fence.
func TestANumberThatIsNoFenceIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, foreign := range []string{"0x12", " 12", "12 ", "1e3", "1.5", "-1", "12\n"} {
		c := claim("k", time.Minute)
		f.do("SET", "loki:{k}:fence", foreign)
		_, err := f.handler.Lock(t.Context(), c)
		requireMistake(t, err, `loki:{k}:fence"`)
		require.Equal(t, []string{"loki:{k}:fence"}, f.keys(), "%q", foreign)

		f.do("DEL", "loki:{k}:fence")
		f.mustHold(c)
		f.do("SET", "loki:{k}:fence", foreign)
		_, err = f.handler.Extend(t.Context(), c)
		requireMistake(t, err, `loki:{k}:fence"`)
		_, err = f.handler.Lock(t.Context(), claim("k", time.Minute))
		requireMistake(t, err, `loki:{k}:fence"`)
		require.Equal(t, foreign, f.value("loki:{k}:fence"))
		require.Equal(t, time.Duration(-1), f.ttl("loki:{k}:fence"), "%q", foreign)
		f.do("FLUSHALL")
	}
}

func TestBusySaysWhatIsRememberedUntilItsTimeIsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := mirrored(claim("k", 50*time.Millisecond))
	f.mustHold(a)
	released := time.Now()
	f.release(a)
	f.mustHold(claim("k", time.Minute))
	b := claim("k", time.Minute)
	require.Eventually(t, func() bool { return f.mustBeBusy(b).Released == "" }, patience, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(released), a.Expiry-time.Millisecond)
}

// writingDown is a hook that has each command's text, as tracing has.
type writingDown struct{ texts []string }

func (w *writingDown) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *writingDown) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *writingDown) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") { // and not of the handshake
			w.texts = append(w.texts, fmt.Sprint(cmd.Args()...), cmd.String())
		}
		return err
	}
}

// With an owner token anybody could release the lock.
func TestAHookThatWritesCommandsDownHasTheKeysAndNoOwnerToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.server.Client(t)
	var w writingDown
	client.AddHook(&w)
	f.handler = redishandler.New(client)
	c := claim("k", time.Minute)
	f.mustHold(c)
	require.True(t, f.extend(c))
	require.Equal(t, []bool{true}, f.extendAll(c))
	f.release(c)
	require.NotEmpty(t, w.texts)
	for _, text := range w.texts {
		require.Contains(t, text, "loki:{k}")
		require.NotContains(t, text, c.Token)
	}
}

// argumentWriter is a client that takes note of the arguments and is out of reach.
type argumentWriter struct {
	keyWriter
	args []any
}

func (w *argumentWriter) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	w.args = args
	return w.keyWriter.EvalSha(ctx, sha, keys, args...)
}

func TestAWrapperGetsPlainArguments(t *testing.T) {
	t.Parallel()
	var w argumentWriter
	c := claim("k", time.Minute)
	c.Fence = 7
	_, err := redishandler.New(&w).Lock(t.Context(), c)
	require.ErrorIs(t, err, errOutOfReach)
	require.Equal(t, []any{c.Token, int64(60_000), c.Holder, int64(60_000 + 86_400_000), int64(7), ""}, w.args)
}
