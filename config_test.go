package loki_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

type invalidHandler struct{ loki.LockHandler }

func (invalidHandler) Validate() error { return errors.New("the table name is empty") }

func TestBuild_NamesEveryMistakeAtOnce(t *testing.T) {
	var typedNil *memhandler.Handler
	_, err := loki.NewBuilder().
		SetServiceKey(" padded").
		SetSecondaryLockHandler(typedNil).
		SetMirror(loki.MirrorMode(7)).
		SetPrimaryTimeout(-1).
		Build()
	for _, want := range []string{
		`the service key " padded" begins or ends with a blank`,
		"the primary lock handler is missing",
		"the secondary lock handler is a nil *memhandler.Handler",
		"MirrorMode(7) is not a mirror mode",
		"handler timeouts of -1ns and 0s",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestBuild_Mistakes(t *testing.T) {
	mem := memhandler.New()
	for name, c := range map[string]struct {
		config loki.Config
		want   string
	}{
		"no key":           {loki.Config{Primary: mem}, "the service key is empty"},
		"control":          {loki.Config{Primary: mem, ServiceKey: "a\nb"}, "contains the invisible character U+000A at byte 1: remove it"},
		"not UTF-8":        {loki.Config{Primary: mem, ServiceKey: "\xff"}, "not valid UTF-8"},
		"too long":         {loki.Config{Primary: mem, ServiceKey: strings.Repeat("ж", 401)}, "401 UTF-16 units, at most 400"},
		"too long encoded": {loki.Config{Primary: mem, ServiceKey: strings.Repeat("/", 200)}, "600 UTF-16 units"},
		"surrogates":       {loki.Config{Primary: mem, ServiceKey: strings.Repeat("😀", 201)}, "402 UTF-16 units"},
		"sync alone":       {loki.Config{Primary: mem, ServiceKey: "a", Mirror: loki.MirrorSync}, "MirrorSync needs a secondary"},
		"one handler":      {loki.Config{Primary: mem, Secondary: mem, ServiceKey: "a"}, "are the same one"},
		"invalid handler":  {loki.Config{Primary: invalidHandler{mem}, ServiceKey: "a"}, "the table name is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := loki.New(c.config)
			require.ErrorContains(t, err, c.want)
			require.Nil(t, l)
		})
	}
	_, err := loki.New(loki.Config{Primary: mem, ServiceKey: strings.Repeat("ж", 400)})
	require.NoError(t, err)
	incomparable := struct {
		loki.LockHandler
		_ []int
	}{LockHandler: mem}
	_, err = loki.New(loki.Config{Primary: incomparable, Secondary: incomparable, ServiceKey: "a"})
	require.NoError(t, err, "nobody can tell")
}

func TestSetHolder(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(r.primary).SetHolder("anna, blue fleet").Build()
		require.NoError(t, err)
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, "anna, blue fleet", r.primary.held(t, "job").ID)
		require.ErrorContains(t, r.requireBusy(r.locker()), `held by "anna, blue fleet" since 2000-01-01T00:00:00.000Z, expires in 1m0s unless it is renewed`)
		require.NoError(t, ls.Release(t.Context()))

		_, err = loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(r.primary).SetHolder("two\nlines").Build()
		require.ErrorContains(t, err, `the holder "two\nlines" contains the invisible character U+000A`)
	})
}

func TestBuild_CopiesByValue(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		b := loki.NewBuilder().SetServiceKey("one").SetPrimaryLockHandler(r.primary)
		one, err := b.Build()
		require.NoError(t, err)
		two, err := b.SetServiceKey("two").SetPrimaryLockHandler(r.secondary).Build()
		require.NoError(t, err)
		require.Equal(t, "one", r.requireRan(one).Key)
		require.Equal(t, "two", r.requireRan(two).Key)
		require.Equal(t, "one", r.primary.Calls()[0].Claim.Key)
		require.Equal(t, "two", r.secondary.Calls()[0].Claim.Key)
	})
}

func TestSetTimeouts(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, err := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(r.primary).SetSecondaryLockHandler(r.secondary).
			SetPrimaryTimeout(70 * time.Millisecond).SetSecondaryTimeout(200 * time.Millisecond).Build()
		require.NoError(t, err)
		r.primary.hang()
		r.secondary.hang()
		start := time.Now()
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		require.Equal(t, 270*time.Millisecond, time.Since(start))
	})
}

func TestPairsOfServiceKeyAndResourceNeverMeet(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		seen := map[string]string{}
		for _, pair := range [][2]string{{"a", ""}, {"a/b", ""}, {"a", "b"}, {"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", ""}, {"a", "%"}, {"a%", ""}, {"a%25", ""}, {"A", "b"}} {
			l := r.locker(func(c *loki.Config) { c.ServiceKey = pair[0] })
			var opts []loki.Option
			if pair[1] != "" {
				opts = append(opts, loki.WithResource(pair[1]))
			}
			key := r.requireRan(l, opts...).Key
			require.Empty(t, seen[key], "%q and %q share the key %q", pair, seen[key], key)
			seen[key] = strings.Join(pair[:], " and ")
		}
	})
}

func TestTokensAreUnique(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(alone), r.locker(alone)
		tokens := map[string]bool{}
		for range 20 {
			r.requireRan(a)
			r.requireRan(b)
		}
		for _, call := range r.primary.Calls() {
			require.Len(t, call.Claim.Token, 32)
			tokens[call.Claim.Token] = true
		}
		require.Len(t, tokens, 40)
	})
}

// https://github.com/kestra-io/kestra/issues/13079
func TestInvisibleCharactersAreRefused(t *testing.T) {
	mem := memhandler.New()
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: mem})
	require.NoError(t, err)
	for name, r := range map[string]rune{
		"byte order mark":           '\ufeff',
		"zero width space":          '\u200b',
		"zero width joiner":         '\u200d',
		"soft hyphen":               '\u00ad',
		"word joiner":               '\u2060',
		"right-to-left override":    '\u202e',
		"isolate":                   '\u2066',
		"left-to-right mark":        '\u200e',
		"line separator":            '\u2028',
		"paragraph separator":       '\u2029',
		"variation selector":        '\ufe0f',
		"variation selector 17":     '\U000e0100',
		"tag":                       '\U000e0041',
		"combining grapheme joiner": '\u034f',
		"Hangul filler":             '\u3164',
		"escape":                    '\x1b',
		"next line":                 '\u0085',
	} {
		t.Run(name, func(t *testing.T) {
			text := "invoice" + string(r) + "-batch"
			want := fmt.Sprintf("contains the invisible character %U at byte 7: remove it", r)
			_, err := loki.New(loki.Config{ServiceKey: text, Holder: text, Primary: mem})
			require.ErrorContains(t, err, "the service key ")
			require.ErrorContains(t, err, "the holder ")
			require.Equal(t, 2, strings.Count(err.Error(), want), err)
			for _, opt := range []loki.Option{loki.WithResource(text), loki.WithOccurrence(text, time.Minute)} {
				require.ErrorContains(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), opt), want)
			}
			_, err = loki.New(loki.Config{ServiceKey: string(r) + "invoice-batch", Primary: mem})
			require.Error(t, err, "at the beginning")
		})
	}
	for _, visible := range []string{"Rechnungslauf für März", "請求書", "счёт", "❤", "हिन्दी", "e\u0301", "a b", "\ue000"} {
		_, err := loki.New(loki.Config{ServiceKey: visible, Holder: visible, Primary: mem})
		require.NoError(t, err, "%+q", visible)
	}
}
