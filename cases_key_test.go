package loki_test

// Cases 047 to 052: names that are long, differ in little, or are somebody else's.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// requireApart demands that two keys are two locks, each of which excludes its like.
func requireApart(t *testing.T, locker func(key string) *loki.Locker, one, other string) {
	t.Helper()
	a, b := hold(t, locker(one), 30*time.Second), hold(t, locker(other), 30*time.Second)
	requireSkipped(t, locker(one))
	requireSkipped(t, locker(other))
	require.NoError(t, a.end())
	requireSkipped(t, locker(other))
	requireRuns(t, locker(one))
	require.NoError(t, b.end())
}

// pairs of keys that some store takes for one.
var pairs = []struct{ name, one, other string }{
	{"the last of 300 characters", strings.Repeat("k", 299) + "a", strings.Repeat("k", 299) + "b"},
	{"the last of the most characters", strings.Repeat("k", 380-1) + "a", strings.Repeat("k", 380-1) + "b"},
	{"case", "Orders", "orders"},
	{"accents", "resume", "résumé"},
	{"kana", "ハイ", "はい"},
	{"alphabets of equal length", "заказы", "оплата"},
	{"composition", "é", "e\u0301"},
	{"width", "a", "\uff41"},
}

func testPairs(t *testing.T, names ...string) {
	chosen := pairs[:0:0]
	for _, p := range pairs {
		for _, name := range names {
			if p.name == name {
				chosen = append(chosen, p)
			}
		}
	}
	require.Len(t, chosen, len(names))
	onServers(t, func(t *testing.T, s *caseStore) {
		for _, p := range chosen {
			t.Run(p.name, func(t *testing.T) {
				requireApart(t, func(key string) *loki.Locker { return instance(t, s, nil, serviceKey(key)) }, p.one, p.other)
			})
		}
		s.requireEmpty()
	})
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		for _, p := range chosen {
			t.Run("fallback/"+p.name, func(t *testing.T) {
				requireApart(t, func(key string) *loki.Locker { return instance(t, refused(t), s, serviceKey(key)) }, p.one, p.other)
			})
		}
		s.requireEmpty()
	})
}

func TestCase047_LongKeysStayDifferent(t *testing.T) {
	t.Parallel()
	testPairs(t, "the last of 300 characters", "the last of the most characters")

	_, err := loki.New(loki.Config{ServiceKey: strings.Repeat("k", loki.MaxKeyLength+1), Primary: memoryStore(t)})
	require.ErrorContains(t, err, "too long")
}

func TestCase049_CaseAndAccentsTellKeysApart(t *testing.T) {
	t.Parallel()
	testPairs(t, "case", "accents", "kana", "alphabets of equal length", "composition", "width")
}

func TestCase052_ForeignDataUnderTheLocksKey(t *testing.T) {
	t.Parallel()
	// lockKeyOf is what the library calls the lock in Redis, as the server sees it.
	lockKeyOf := func(t *testing.T, r *realRedis, l *loki.Locker) string {
		recorder := r.Record(t)
		requireRuns(t, l)
		for _, c := range recorder.Sent(t) {
			if len(c.Args) > 3 && strings.HasPrefix(c.Name(), "eval") {
				return c.Args[3]
			}
		}
		require.FailNow(t, "MONITOR shows no script")
		return ""
	}
	t.Run("before the call", func(t *testing.T) {
		t.Parallel()
		r, secondary := startRedis(t), memoryStore(t)
		key := lockKeyOf(t, r, instance(t, r.handler(), nil))
		l := instance(t, r.handler(), secondary)
		for name, plant := range map[string][]any{
			"list":   {"RPUSH", key, "a", "b"},
			"hash":   {"HSET", key, "field", "value"},
			"string": {"SET", key, "somebody's data"},
		} {
			require.NoError(t, r.direct.Do(t.Context(), plant...).Err())
			before, err := r.direct.Dump(t.Context(), key).Result()
			require.NoError(t, err)

			err = l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
			require.ErrorContains(t, err, key, name)
			require.ErrorContains(t, err, "not a lock", name)
			require.NotErrorIs(t, err, loki.ErrBusy, name)
			require.NotErrorIs(t, err, loki.ErrUnavailable, name)
			after, err := r.direct.Dump(t.Context(), key).Result()
			require.NoError(t, err)
			require.Equal(t, before, after, name)
			require.NoError(t, r.direct.Del(t.Context(), key).Err())
		}
		require.Empty(t, secondary.Calls(), "a mistake was taken for an outage")
	})
	t.Run("during the call", func(t *testing.T) {
		t.Parallel()
		r, log := startRedis(t), &eventLog{}
		l := instance(t, r.handler(), nil, watched(log))
		key := lockKeyOf(t, r, l)
		h := hold(t, l, 30*time.Second)
		require.NoError(t, r.direct.Del(t.Context(), key).Err())
		require.NoError(t, r.direct.HSet(t.Context(), key, "field", "value").Err())
		require.ErrorIs(t, h.endWith(errFn), errFn)
		eventually(t, func() bool { return len(log.of(loki.KindRefused)) > 0 }, "the refused release is reported")
		require.Equal(t, []string{"ERROR refused primary"}, log.reported())
		err := log.of(loki.KindRefused)[0].Err
		require.ErrorContains(t, err, key)
		require.ErrorContains(t, err, "not a lock")
		require.Equal(t, map[string]string{"field": "value"}, r.direct.HGetAll(t.Context(), key).Val())
	})
}
