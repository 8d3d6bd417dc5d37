package loki_test

// Cases 010 to 015: releases that free somebody else, happen twice, or never end.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

func TestCase010_LateReleaseDoesNotFreeTheNextHolder(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *caseStore) {
		slow, held := lokitest.NewFaults(s), make(chan struct{})
		a, b, c := instance(t, slow, nil), instance(t, s, nil), instance(t, s, nil)
		slow.Set(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{Until: held, IgnoreCtx: true}}) // until B holds
		late := hold(t, a, s.expiry, loki.WithoutRenewal())
		next := begin(t.Context(), t, b, time.Minute, loki.WithWait(loki.UntilDone))
		late.requireLost(loki.ErrExpired)
		next.requireStarted() // A's fn goes on, as one does that does not look at its context
		token := s.token("job")
		require.NotEmpty(t, token)
		require.Empty(t, s.Calls(lokitest.OpRelease), "A's release comes too early for this case")

		close(held)
		err := late.end()
		require.ErrorIs(t, err, loki.ErrLockLost)
		require.ErrorIs(t, err, loki.ErrExpired)
		require.Eventually(t, func() bool { return len(s.Calls(lokitest.OpRelease)) > 0 }, time.Minute, time.Millisecond,
			"A's release has been asked for, perhaps after its caller gave it up")
		require.NotEqual(t, token, s.Calls(lokitest.OpRelease)[0].Claim.Token)
		requireSkipped(t, c)
		require.Equal(t, token, s.token("job"))
		require.NoError(t, next.ctx.Err())
		require.NoError(t, next.end())
		s.requireEmpty()
	})
}

func TestCase011_EachAcquisitionHasATokenOfItsOwn(t *testing.T) {
	t.Parallel()
	onSecondaries(t, func(t *testing.T, s *caseStore) {
		r := startRedis(t)
		seen := make(map[string]bool)
		for range 2 { // two instances of equal settings
			l := instance(t, r.handler(), s, mode(loki.MirrorSync))
			for range 10 {
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
					token := r.token()
					require.Len(t, token, 32, "128 bits in hexadecimal")
					require.False(t, seen[token], "%s again", token)
					seen[token] = true
					require.Equal(t, token, s.token("job"), "one claim, one token")
					return nil
				}))
			}
		}
		require.Len(t, seen, 20)
		r.requireEmpty()
		s.requireEmpty()
	})
}

func TestCase012_SecondReleaseDoesNotFreeTheNextHolder(t *testing.T) {
	t.Parallel()
	// freed has A's lock freed behind its back, and returns what A does when it ends.
	for name, freed := range map[string]func(t *testing.T, r *realRedis, s *caseStore, a *loki.Locker) func(){
		"freed from outside": func(t *testing.T, r *realRedis, s *caseStore, a *loki.Locker) func() {
			h := hold(t, a, 30*time.Second)
			claim := loki.Claim{Key: "job", Token: r.token(), Expiry: time.Minute}
			require.NoError(t, r.handler().Release(t.Context(), claim))
			require.NoError(t, s.Release(t.Context(), claim))
			return func() { _ = h.end() }
		},
		"freed by Close": func(t *testing.T, _ *realRedis, _ *caseStore, a *loki.Locker) func() {
			ls, err := a.Acquire(t.Context(), 30*time.Second)
			require.NoError(t, err)
			require.NoError(t, a.Close(t.Context()))
			require.ErrorIs(t, context.Cause(ls.Context()), loki.ErrClosed)
			return func() { require.NoError(t, ls.Release(t.Context())) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onSecondaries(t, func(t *testing.T, s *caseStore) {
				r := startRedis(t)
				a, b := instance(t, r.handler(), s, mode(loki.MirrorSync)), instance(t, r.handler(), s, mode(loki.MirrorSync))
				c := instance(t, r.handler(), s)
				release := freed(t, r, s, a)
				next := hold(t, b, 30*time.Second)
				key, row := r.value(), s.token("job")
				require.NotEmpty(t, row)

				release()
				require.NoError(t, a.Close(t.Context())) // its releases have been answered
				requireSkipped(t, c)
				require.Equal(t, key, r.value())
				require.Equal(t, row, s.token("job"))
				require.NoError(t, next.end())
				r.requireEmpty()
				s.requireEmpty()
			})
		})
	}
}

func TestCase013_NothingStaysLocallyAfterALateRelease(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	l := instance(t, r.handler(), nil)
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			resource := loki.WithResource(fmt.Sprint(i))
			h := begin(t.Context(), t, l, 1500*time.Millisecond, loki.WithoutRenewal(), resource)
			select {
			case <-h.started:
			case <-h.returned:
				t.Errorf("call 1: %v", h.err)
				return
			}
			<-h.ctx.Done()
			h.letGo(nil)
			<-h.returned
			if first := h.err; !assertLost(t, first) {
				return
			}
			ran := false
			err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				ran = true
				return nil
			}, resource)
			if err != nil || !ran {
				t.Errorf("call 2: ran %v, %v", ran, err)
			}
		})
	}
	calls.Wait()
	r.requireEmpty()
}

func TestCase015_ReleaseOfAnExpiredLockEnds(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	l := instance(t, r.handler(), nil)
	h := begin(t.Context(), t, l, 900*time.Millisecond, loki.WithWait(loki.UntilDone), loki.WithoutRenewal())
	h.requireStarted()
	recorder := r.Record(t)
	<-h.ctx.Done()
	eventually(t, func() bool { return len(r.left()) == 0 }, "the key has expired")
	start := time.Now()
	require.ErrorIs(t, h.end(), loki.ErrExpired)
	require.Less(t, time.Since(start), time.Second)

	time.Sleep(300 * time.Millisecond) // nothing more comes
	releases := 0
	for _, c := range recorder.Sent(t) {
		if name := c.Name(); name == "eval" || name == "evalsha" {
			releases++
		}
	}
	require.Positive(t, releases)
	require.LessOrEqual(t, releases, 2)
}
