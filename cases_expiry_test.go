package loki_test

// Cases 041 to 045: expiries that are rounded, negative, or of the wrong unit.

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
)

func TestCase041_ExpiryIsKeptToTheMillisecond(t *testing.T) {
	t.Parallel()
	// What the commands that set an expiry are given, for the lock's key.
	expiries := func(commands []redistest.Command) (set, renewed []int64) {
		for _, c := range commands {
			if len(c.Args) < 3 || c.Args[1] != lockKey {
				continue
			}
			ms, _ := strconv.ParseInt(c.Args[len(c.Args)-1], 10, 64)
			switch c.Name() {
			case "set":
				set = append(set, ms)
			case "pexpire":
				renewed = append(renewed, ms)
			}
		}
		return set, renewed
	}
	for _, c := range []struct {
		expiry time.Duration
		ms     int64
	}{
		{900 * time.Millisecond, 900},
		{1500 * time.Millisecond, 1500},
		{1250*time.Millisecond + 1, 1251}, // up: a lock must not end before its time
		{1250*time.Millisecond + 900*time.Microsecond, 1251},
	} {
		t.Run(c.expiry.String(), func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			l := instance(t, r.handler(), nil)
			recorder := r.Record(t)
			asked := time.Now()
			h := hold(t, l, c.expiry)
			whole := time.Duration(c.ms) * time.Millisecond
			left := r.pttl()
			require.LessOrEqual(t, left, whole)
			require.GreaterOrEqual(t, left, whole-time.Since(asked)-time.Millisecond)

			eventually(t, func() bool {
				require.LessOrEqual(t, r.pttl(), whole)
				_, renewed := expiries(recorder.Scripted(t))
				return len(renewed) >= 2
			}, "it has been renewed twice")
			require.NoError(t, h.end())
			set, renewed := expiries(recorder.Scripted(t))
			require.Equal(t, []int64{c.ms}, set)
			for _, ms := range renewed {
				require.Equal(t, c.ms, ms)
			}
		})
	}
	t.Run("too short", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t)
		l := instance(t, r.handler(), nil)
		recorder := r.Record(t)
		for _, expiry := range []time.Duration{900 * time.Microsecond, 1900 * time.Microsecond, loki.MinExpiry - 1} {
			err := l.ExecuteWithinLock(t.Context(), expiry, mustNotRun(t))
			require.ErrorContains(t, err, "too short")
			require.ErrorContains(t, err, loki.MinExpiry.String())
			require.NotErrorIs(t, err, loki.ErrBusy)
		}
		require.Empty(t, recorder.Sent(t))
	})
	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		const limit = 300 * time.Millisecond
		r := startRedis(t)
		a, b := instance(t, r.handler(), nil), instance(t, r.handler(), nil)
		h := hold(t, a, 30*time.Second)
		start := time.Now()
		err := b.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithWait(limit))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.GreaterOrEqual(t, time.Since(start), limit)
		require.Less(t, time.Since(start), limit+2*time.Second)
		require.NoError(t, h.end())
	})
}

func TestCase043_MagicExpiriesAreRefused(t *testing.T) {
	t.Parallel()
	r, secondary := startRedis(t), memoryStore(t)
	l := instance(t, r.handler(), secondary)
	recorder := r.Record(t)
	for _, expiry := range []time.Duration{-1, 0, -time.Hour, -1 << 63, loki.MaxExpiry + 1, 1<<63 - 1} {
		err := l.ExecuteWithinLock(t.Context(), expiry, mustNotRun(t))
		require.ErrorContains(t, err, "an expiry of "+expiry.String())
		require.NotErrorIs(t, err, loki.ErrBusy)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
	}
	require.Empty(t, recorder.Sent(t))
	require.Empty(t, secondary.Calls())
}

func TestCase045_ExpiryHasTheRightUnit(t *testing.T) {
	t.Parallel()
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		r := startRedis(t)
		byPrimary := instance(t, r.handler(), s, mode(loki.MirrorSync))
		byFallback := instance(t, refused(t), s)
		for _, expiry := range []time.Duration{15 * time.Second, 90 * time.Minute, 36 * time.Hour} {
			// Before anything was asked: what is left may be less by what has passed since, and by nothing else.
			asked := time.Now()
			within := func(left time.Duration) {
				t.Helper()
				require.LessOrEqual(t, left, expiry)
				require.GreaterOrEqual(t, left, expiry-time.Since(asked)-2*time.Millisecond)
			}
			require.NoError(t, byPrimary.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
				within(r.pttl())
				within(s.remaining("job"))
				return nil
			}))
			s.requireEmpty()
			asked = time.Now()
			require.NoError(t, byFallback.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error {
				within(s.remaining("job"))
				return nil
			}))
			s.requireEmpty()
		}
		r.requireEmpty()
	})
}
