package loki_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

// A handler that never returns costs a few calls of a key, and the other keys nothing.
func TestAbandonedCallsOfOneKeyAreBounded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		until := make(chan struct{})
		stuck := newStuckHandler(until)
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: stuck, PrimaryTimeout: 10 * time.Millisecond})
		require.NoError(t, err)
		for range 2 * loki.MaxAbandonedOfKey {
			require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
		}
		require.LessOrEqual(t, stuck.most(), int64(loki.MaxAbandonedOfKey+2), "calls that do not return pile up")
		start := time.Now()
		require.ErrorContains(t, r.try(l), "earlier calls for this key have not returned")
		require.Zero(t, time.Since(start), "unavailable at once")
		before := stuck.most()
		require.ErrorContains(t, r.try(l, loki.WithResource("other")), "no answer within 10ms")
		require.Greater(t, stuck.most(), before, "another key is asked")

		close(until)
		time.Sleep(5 * time.Second)
		r.requireRan(l)
		require.NoError(t, l.Close(t.Context()))
	})
}

// From some number on, a key that has an abandoned call gets no more of them: each key's first call is still made.
func TestAbandonedCallsOfManyKeysAreBounded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		until := make(chan struct{})
		stuck := newStuckHandler(until)
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: stuck, PrimaryTimeout: 10 * time.Millisecond})
		require.NoError(t, err)
		for i := range loki.ManyAbandoned / 2 { // each call is two attempts
			require.ErrorContains(t, r.try(l, loki.WithResource(fmt.Sprint(i))), "no answer within 10ms")
		}
		require.ErrorContains(t, r.try(l, loki.WithResource("0")), "earlier calls for this key have not returned")
		require.ErrorContains(t, r.try(l, loki.WithResource("new")), "no answer within 10ms")
		close(until)
		time.Sleep(5 * time.Second)
		require.NoError(t, l.Close(t.Context()))
	})
}

// heedful waits until its ctx is done.
type heedful struct {
	loki.LockHandler
	calls atomic.Int32
}

func (h *heedful) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	if strings.Contains(c.Key, loki.ProbeSuffix) {
		return true, nil
	}
	h.calls.Add(1)
	defer h.calls.Add(-1)
	<-ctx.Done()
	return false, ctx.Err()
}

// A call that was given up goes on for a while, but only two of a key do at once: a third one ends the oldest.
func TestAbandonedCallsThatLingerAreFewForEachKey(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		h := &heedful{LockHandler: memhandler.New()}
		l := r.locker(func(c *loki.Config) { c.Primary, c.Secondary = h, nil })
		var callers sync.WaitGroup
		for range 6 {
			callers.Go(func() { require.ErrorIs(t, r.try(l), loki.ErrUnavailable) })
		}
		callers.Wait()
		synctest.Wait()
		require.EqualValues(t, 2*loki.MaxLingering, h.calls.Load(), "a call is two attempts")
		time.Sleep(loki.Linger)
		synctest.Wait()
		require.Zero(t, h.calls.Load())
	})
}

// Two attempts of a call whose ctx the handler ignores are counted when their time is up, also if the other one was answered.
func TestAbandonedAttemptsOfAnsweredCallsAreBounded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.deadConnection(lokitest.Pause{For: time.Hour, IgnoreCtx: true}, lokitest.OpLock)
		var err error
		n := 0
		for ; err == nil && n < 2*loki.MaxAbandoned; n++ {
			err = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithResource(fmt.Sprint(n)))
		}
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.InDelta(t, loki.MaxAbandoned, n, 5)
		time.Sleep(2 * time.Hour)
	})
}

// One shard of a cluster swallows everything, and the client tries on for long after its ctx has ended.
func TestProbesOfADeadShardLeaveTheOthersTheirCalls(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
			if strings.Contains(c.Key, "dead") {
				return lokitest.Fault{Before: late(16 * time.Second), Err: errDown}
			}
			return lokitest.Fault{}
		})
		for i := range 60 {
			require.Error(t, r.try(l, loki.WithResource(fmt.Sprint("dead", i))))
			time.Sleep(4 * time.Second)
			require.NoError(t, r.try(l, loki.WithResource("fine")))
		}
		for range 60 {
			require.NoError(t, r.try(l, loki.WithResource("fine")))
			time.Sleep(time.Second)
		}
		r.requireReported("ERROR down primary")
		r.primaryIsBack()
		time.Sleep(time.Minute)
		r.requireReported("ERROR down primary", "INFO up primary")
	})
}

// One shard of the primary swallows requests, and the client ignores contexts, as go-redis does by default. The other shards
// are well, and stay so.
func TestAbandonedCallsOfOneShardLeaveTheOthersAlone(t *testing.T) {
	for _, perSecond := range []int{10, 60} {
		t.Run(fmt.Sprint(perSecond), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				ls, err := l.Acquire(t.Context(), 10*time.Second, loki.WithResource("healthy"))
				require.NoError(t, err)
				r.primary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
					if strings.Contains(c.Key, "dead") {
						return lokitest.Fault{Before: late(5 * time.Second), Err: errDown}
					}
					return lokitest.Fault{}
				})
				var wg sync.WaitGroup
				start := time.Now()
				for i := 0; time.Since(start) < 2*time.Minute; i++ {
					wg.Go(func() { _ = r.try(l, loki.WithResource(fmt.Sprint("dead", i))) })
					time.Sleep(time.Second / time.Duration(perSecond))
					if i%perSecond == 0 {
						require.NoError(t, r.try(l, loki.WithResource(fmt.Sprint("well", i))))
					}
				}
				wg.Wait()
				require.NoError(t, ls.Context().Err())
				require.NoError(t, ls.Release(t.Context()))
			})
		})
	}
}

// coldStore is a store behind a pool of connections, as database/sql keeps one: the first statement of a connection takes
// long, the others 5 ms, and the driver closes the connection of a call whose context ends.
type coldStore struct {
	loki.LockHandler
	first time.Duration

	mu   sync.Mutex
	idle int
}

func (s *coldStore) use(ctx context.Context) error {
	s.mu.Lock()
	takes := s.first
	if s.idle > 0 {
		takes = 5 * time.Millisecond
		s.idle--
	}
	s.mu.Unlock()
	select {
	case <-time.After(takes):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.idle = min(s.idle+1, 2)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *coldStore) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	if err := s.use(ctx); err != nil {
		return false, err
	}
	return s.LockHandler.Lock(ctx, c)
}

func (s *coldStore) Release(ctx context.Context, c loki.Claim) error {
	if err := s.use(ctx); err != nil {
		return err
	}
	return s.LockHandler.Release(ctx, c)
}

// A store whose first statement takes longer than a call may is used from the second call on.
func TestAbandonedCallsWarmTheirConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		first, expiry time.Duration
		use           func(*loki.Config, *coldStore)
	}{
		"alone":               {600 * time.Millisecond, 30 * time.Second, func(c *loki.Config, s *coldStore) { c.Primary, c.Secondary = s, nil }},
		"in sync, short":      {1300 * time.Millisecond, 2 * time.Second, func(c *loki.Config, s *coldStore) { c.Secondary, c.Mirror = s, loki.MirrorSync }},
		"in sync, very short": {time.Second, time.Second, func(c *loki.Config, s *coldStore) { c.Secondary, c.Mirror = s, loki.MirrorSync }},
		"in sync, very slow":  {4 * time.Second, 30 * time.Second, func(c *loki.Config, s *coldStore) { c.Secondary, c.Mirror = s, loki.MirrorSync }},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				s := &coldStore{LockHandler: memhandler.New(), first: tt.first}
				l := r.locker(func(c *loki.Config) { tt.use(c, s) })
				ran := 0
				for range 20 {
					if l.ExecuteWithinLock(t.Context(), tt.expiry, func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }) == nil {
						ran++
					}
					time.Sleep(time.Second)
				}
				require.GreaterOrEqual(t, ran, 14)
				time.Sleep(time.Minute)
			})
		})
	}
}
