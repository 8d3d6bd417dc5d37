package loki_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// boundedStore is a store whose handler bounds its calls. It notes on which goroutine each one is made.
type boundedStore struct {
	*testStore
	mu    sync.Mutex
	calls []boundedCall
}

type boundedCall struct {
	op        lokitest.Op
	claim     loki.Claim
	goroutine string
}

func (s *boundedStore) Bounds() bool { return true }

func (s *boundedStore) note(op lokitest.Op, c loki.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, boundedCall{op, c, goroutine()})
}

func (s *boundedStore) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	s.note(lokitest.OpLock, c)
	return s.testStore.Grant(ctx, c)
}

func (s *boundedStore) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	s.note(lokitest.OpExtend, c)
	return s.testStore.Extend(ctx, c)
}

func (s *boundedStore) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	s.note(lokitest.OpRelease, c)
	return s.testStore.ReleaseHeld(ctx, c)
}

// since returns the calls from the given one on.
func (s *boundedStore) since(n int) []boundedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]boundedCall(nil), s.calls[n:]...)
}

func (s *boundedStore) count() int { return len(s.since(0)) }

// goroutine returns the name of the goroutine that calls it.
func goroutine() string {
	var stack [64]byte
	name, _, _ := bytes.Cut(stack[:runtime.Stack(stack[:], false)], []byte(" ["))
	return string(name)
}

// inBoundedRig is inRig with a primary that bounds its calls and has answered one.
func inBoundedRig(t *testing.T, test func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker)) {
	inRig(t, func(t *testing.T, r *rig) {
		s := &boundedStore{testStore: r.primary}
		l := r.locker(alone, func(c *loki.Config) { c.Primary = s })
		r.requireRan(l)
		test(t, r, s, l)
	})
}

func TestBounder_IsCalledOnTheCallersGoroutineWhileItIsQuick(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		first := s.since(0)
		require.Len(t, first, 2)
		require.NotEqual(t, goroutine(), first[0].goroutine, "nothing is known of its pace before its first answer")
		require.False(t, first[0].claim.Bounded)
		require.Equal(t, goroutine(), first[1].goroutine)
		require.True(t, first[1].claim.Bounded)

		time.Sleep(loki.PaceHolds - time.Millisecond)
		r.requireRan(l)
		require.Equal(t, goroutine(), s.since(2)[0].goroutine)

		time.Sleep(loki.PaceHolds)
		r.requireRan(l)
		require.NotEqual(t, goroutine(), s.since(4)[0].goroutine, "its connections may have died since the last answer")
		require.False(t, s.since(4)[0].claim.Bounded)
	})
}

func TestBounder_ThatIsSlowGetsASecondAttemptBesideTheFirst(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		for _, op := range everyOp {
			s.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: loki.DefaultPrimaryTimeout / 6}})
		}
		r.requireRan(l) // the first attempts are made here still, and are answered before the second ones are due
		n := s.count()
		r.requireRan(l)
		for _, call := range s.since(n) {
			require.False(t, call.claim.Bounded)
		}
	})
}

func TestBounder_ThatFallsSilentIsCalledAgainInTime(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		s.deadConnection(swallowed)
		n := s.count()
		out := r.requireRan(l)
		require.Equal(t, min(loki.LongestHere, loki.DefaultPrimaryTimeout/4), out.Waited, "no longer than over a goroutine")
		calls := s.since(n)
		require.True(t, calls[0].claim.Bounded)
		require.True(t, calls[1].claim.Repeated)
		require.False(t, calls[1].claim.Bounded)
		require.Equal(t, calls[0].claim.Token, calls[1].claim.Token)
		require.Empty(t, r.events(loki.KindDown))
	})
}

// What the attempt on the caller's goroutine asked for may be carried out after it has returned: it is released then.
func TestBounder_FirstAttemptThatLandsLateLeavesNothing(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		s.hang()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		n := s.count()
		err := l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.heal()
		claim := s.since(n)[0].claim
		held, err := s.mem.Lock(t.Context(), claim)
		require.NoError(t, err)
		require.True(t, held)
		time.Sleep(5 * time.Second)
		r.requireEmpty()
	})
}

func TestBounder_OutageIsReportedAsOverAGoroutine(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		s.hang()
		start := time.Now()
		err := r.try(l)
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.Equal(t, loki.DefaultPrimaryTimeout, time.Since(start))
		require.ErrorContains(t, err, "no answer within")

		s.heal()
		r.requireRan(l)
		s.fail(loki.Unavailable(errDown))
		start = time.Now()
		require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
		require.Zero(t, time.Since(start), "a refusal needs no second attempt")
	})
}

func TestBounder_ReturnsWhenTheCallerCancels(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, l *loki.Locker) {
		s.hang(lokitest.OpLock)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		start, n := time.Now(), s.count()
		require.ErrorIs(t, l.ExecuteWithinLock(ctx, 30*time.Second, mustNotRun(t)), context.Canceled)
		require.Equal(t, 5*time.Millisecond, time.Since(start))
		require.True(t, s.since(n)[0].claim.Bounded)
	})
}

func TestBounder_PanicIsAnError(t *testing.T) {
	inBoundedRig(t, func(t *testing.T, r *rig, s *boundedStore, _ *loki.Locker) {
		l := r.locker(alone, func(c *loki.Config) { c.Primary = panicking{s} })
		s.faults.Set(lokitest.OpLock, lokitest.Fault{})
		r.requireRan(l)
		err := l.ExecuteWithinLock(t.Context(), 31*time.Second, mustNotRun(t))
		require.ErrorContains(t, err, "the handler panicked")
		require.Len(t, r.events(loki.KindPanic), 1)
	})
}

// panicking panics for claims of an expiry that is no usual one.
type panicking struct{ *boundedStore }

func (p panicking) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if c.Expiry == 31*time.Second {
		panic("odd")
	}
	return p.boundedStore.Grant(ctx, c)
}
