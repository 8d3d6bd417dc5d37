package redishandler_test

// This file is what each operation answers and leaves in Redis.

import (
	"context"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

var (
	_ loki.LockHandler = (*redishandler.Handler)(nil)
	_ loki.Granter     = (*redishandler.Handler)(nil)
	_ loki.Extender    = (*redishandler.Handler)(nil)
	_ loki.Inspector   = (*redishandler.Handler)(nil)
	_ loki.Bounder     = (*redishandler.Handler)(nil)
	_ loki.Validator   = (*redishandler.Handler)(nil)
)

func TestLockIsExclusiveAndRepeatable(t *testing.T) {
	f := newFixture(t)
	a, b := claim("k", time.Minute), claim("k", time.Minute)
	for range 2 {
		held, err := f.handler.Lock(t.Context(), a)
		require.NoError(t, err)
		require.True(t, held)
	}
	held, err := f.handler.Lock(t.Context(), b)
	require.NoError(t, err)
	require.False(t, held)

	f.release(b) // does not hold
	f.mustBeBusy(b)
	f.release(a)
	f.release(a)
	f.mustHold(b)
}

func TestLockAgainStartsExpiryAnew(t *testing.T) {
	f := newFixture(t)
	c := claim("k", 30*time.Minute)
	first := f.mustHold(c)
	for _, expiry := range []time.Duration{time.Hour, time.Minute} {
		c.Expiry = expiry
		require.Equal(t, first, f.mustHold(c))
		f.requireTTL("loki:{k}", expiry)
		f.requireTTL("loki:{k}:fence", expiry+redishandler.DefaultFenceTTL)
	}
}

func TestReleaseLeavesTheCompanionOnly(t *testing.T) {
	f := newFixture(t)
	c := claim("k", 48*time.Hour)
	fence := f.mustHold(c).Fence
	f.requireTTL("loki:{k}:fence", c.Expiry+redishandler.DefaultFenceTTL)
	f.release(c)
	require.Equal(t, []string{"loki:{k}:fence"}, f.keys())
	require.Equal(t, strconv.FormatInt(fence, 10), f.value("loki:{k}:fence"))
	f.requireTTL("loki:{k}:fence", redishandler.DefaultFenceTTL)
}

func TestExtend(t *testing.T) {
	f := newFixture(t)
	c := claim("k", 30*time.Minute)
	require.False(t, f.extend(c), "it must not take what is free")
	require.Empty(t, f.keys())

	f.mustHold(c)
	value := f.value("loki:{k}")
	for _, expiry := range []time.Duration{48 * time.Hour, time.Minute} {
		c.Expiry = expiry
		require.True(t, f.extend(c))
		f.requireTTL("loki:{k}", expiry)
		f.requireTTL("loki:{k}:fence", expiry+redishandler.DefaultFenceTTL)
	}
	require.Equal(t, value, f.value("loki:{k}"))

	other := claim("k", time.Hour)
	require.False(t, f.extend(other))
	f.requireTTL("loki:{k}", time.Minute)
}

func TestHolderIsTold(t *testing.T) {
	f := newFixture(t)
	_, held, err := f.handler.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, held)

	before := time.Now().Add(-time.Second) // a script's time is when the server woke up, which may be before it has read the request
	c := claim("k", time.Minute)
	c.Holder = "host: \"a\"\n 1 2 3 {%} \x00\xff"
	f.mustHold(c)
	f.mustHold(c) // a renewal does not change when it began
	after := time.Now()

	holder, held, err := f.handler.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	for _, got := range []loki.Holder{holder, f.mustBeBusy(claim("k", time.Hour)).HeldBy} {
		require.Equal(t, c.Holder, got.ID)
		require.WithinRange(t, got.Since, before, after) // one machine, one clock
		require.WithinRange(t, got.Until, before.Add(c.Expiry), after.Add(c.Expiry))
		require.LessOrEqual(t, got.Left, c.Expiry+time.Millisecond)
		require.Greater(t, got.Left, c.Expiry-patience)
	}

	f.release(c)
	_, held, err = f.handler.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, held)
}

// A waiter who tries again after what was left finds the lock free.
func TestLeftIsNotTooShort(t *testing.T) {
	f := newFixture(t)
	for range 20 {
		a, b := claim("k", 5*time.Millisecond), claim("k", time.Minute)
		f.mustHold(a)
		g := f.grant(b)
		if g.Held {
			f.release(b) // a slow machine: the claim was over
			continue
		}
		require.Positive(t, g.HeldBy.Left)
		<-time.After(g.HeldBy.Left)
		f.mustHold(b)
		f.release(b)
	}
}

func TestCase041_ExpiryIsKeptToTheMillisecondRoundedUp(t *testing.T) {
	f := newFixture(t)
	recorder := f.server.Record(t)
	for _, test := range []struct {
		expiry time.Duration
		ms     string
	}{
		{1, "1"},
		{900 * time.Microsecond, "1"},
		{time.Millisecond, "1"},
		{1900 * time.Microsecond, "2"},
		{400 * time.Millisecond, "400"},
		{1500 * time.Millisecond, "1500"},
		{90*time.Second + 1, "90001"},
		{loki.MaxExpiry, strconv.FormatInt(loki.MaxExpiry.Milliseconds(), 10)},
		{math.MaxInt64, "9223372036855"},
	} {
		c := claim("k "+test.expiry.String(), test.expiry)
		f.mustHold(c)
		set := recorder.Scripted(t)
		set = set[len(set)-2:] // the lock and its companion
		require.Equal(t, []string{"PX", test.ms}, set[0].Args[3:], "%v", test.expiry)

		if test.expiry > time.Minute { // the others may be over by now
			require.True(t, f.extend(c))
			extend := recorder.Scripted(t)
			require.Equal(t, []string{"PEXPIRE", "loki:{" + c.Key + "}", test.ms}, extend[len(extend)-2].Args)
		}
	}
}

func TestCase043_ExpiryMustBePositive(t *testing.T) {
	f := newFixture(t)
	for _, expiry := range []time.Duration{0, -1, -time.Second} {
		c := claim("k", expiry)
		_, err := f.handler.Lock(t.Context(), c)
		requireMistake(t, err, "must be positive")
		_, err = f.handler.Extend(t.Context(), c)
		requireMistake(t, err, "must be positive")
		f.release(c)
	}
	require.Empty(t, f.keys())
}

func TestClaimsThatCannotBeStoredAreRefused(t *testing.T) {
	f := newFixture(t)
	for text, spoil := range map[string]func(*loki.Claim){
		"key is empty":         func(c *loki.Claim) { c.Key = "" },
		"owner token that is ": func(c *loki.Claim) { c.Token = "" },
		"or has a space in it": func(c *loki.Claim) { c.Token = "a b" },
		"cannot be negative":   func(c *loki.Claim) { c.Fence = -1 },
	} {
		c := claim("k", time.Minute)
		spoil(&c)
		_, err := f.handler.Grant(t.Context(), c)
		requireMistake(t, err, text)
	}
	require.Empty(t, f.keys())
}

func TestSupersedes(t *testing.T) {
	f := newFixture(t)
	a, b := claim("k", time.Minute), claim("k", time.Minute)
	first := f.mustHold(a)

	b.Supersedes = claim("k", time.Minute).Token
	require.Equal(t, a.Holder, f.mustBeBusy(b).HeldBy.ID)

	b.Supersedes = a.Token
	second := f.mustHold(b)
	require.Greater(t, second.Fence, first.Fence)
	require.True(t, strings.HasPrefix(f.value("loki:{k}"), b.Token))
	require.False(t, f.extend(a))
	f.release(a)
	require.True(t, f.extend(b))
}

func TestEndedContextSendsNothing(t *testing.T) {
	heedless := &keyWriter{} // go-redis looks at the context itself
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range calls(redishandler.New(heedless), claim("k", time.Minute)) {
		require.ErrorIs(t, call(ctx), context.Canceled, name)
	}
	require.Empty(t, heedless.keys)
}

func TestCase098_OneCommandAnOperationAndNoKeyWithoutExpiry(t *testing.T) {
	f := newFixture(t)
	a, b := mirrored(claim("k", time.Minute)), claim("k", time.Minute)
	warm := claim("warm", time.Minute) // the server knows the scripts after this
	f.mustHold(warm)
	require.True(t, f.extend(warm))
	f.release(warm)
	_, _, err := f.handler.Inspect(t.Context(), "warm")
	require.NoError(t, err)

	recorder := f.server.Record(t)
	for _, step := range []func(){
		func() { f.mustHold(a) },
		func() { f.mustHold(a) },
		func() { f.mustBeBusy(b) },
		func() { require.True(t, f.extend(a)) },
		func() { require.False(t, f.extend(b)) },
		func() { _, _, err := f.handler.Inspect(t.Context(), "k"); require.NoError(t, err) },
		func() { f.release(b) },
		func() { f.release(a) },
		func() { f.mustHold(b) },
		func() { f.release(b) },
	} {
		before := len(recorder.Sent(t))
		step()
		sent := recorder.Sent(t)[before:]
		require.Len(t, sent, 1)
		require.Equal(t, "evalsha", sent[0].Name())
		for _, key := range f.keys() {
			require.Positive(t, f.ttl(key), key)
		}
	}
	for _, c := range recorder.Scripted(t) {
		if c.Name() == "set" {
			require.Equal(t, "PX", c.Args[3], "%q sets no expiry", c.Args)
		}
	}
}
