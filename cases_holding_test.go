package loki_test

// This file is the calls of the field cases: closures that go on for as long as the test wants, that have to run, or
// that must not.

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// holding is a call whose closure goes on, whatever becomes of its context, until the test ends it.
type holding struct {
	t        *testing.T
	started  chan struct{} // closed when fn has begun
	returned chan struct{} // closed when the call has returned
	stop     chan struct{}
	once     sync.Once

	ctx context.Context // fn's own; valid once it has started
	at  time.Time       // when it started
	fn  error           // what fn returns; set before stop is closed
	err error           // what the call returned
	out loki.Outcome
}

// begin calls in a goroutine of its own.
func begin(ctx context.Context, t *testing.T, l *loki.Locker, expiry time.Duration, opts ...loki.Option) *holding {
	h := &holding{t: t, started: make(chan struct{}), returned: make(chan struct{}), stop: make(chan struct{})}
	opts = append(slices.Clone(opts), loki.WithOutcome(&h.out))
	go func() {
		defer close(h.returned)
		h.err = l.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
			h.ctx, h.at = ctx, time.Now()
			close(h.started)
			<-h.stop
			return h.fn
		}, opts...)
	}()
	t.Cleanup(func() {
		h.letGo(nil)
		<-h.returned
	})
	return h
}

// hold is begin, and waits until fn runs.
func hold(t *testing.T, l *loki.Locker, expiry time.Duration, opts ...loki.Option) *holding {
	t.Helper()
	h := begin(t.Context(), t, l, expiry, opts...)
	h.requireStarted()
	return h
}

func (h *holding) requireStarted() {
	h.t.Helper()
	select {
	case <-h.started:
	case <-h.returned:
		select {
		case <-h.started:
		default:
			require.FailNow(h.t, "fn did not run", "%v", h.err)
		}
	case <-time.After(patience):
		require.FailNow(h.t, "fn has not started")
	}
}

// requireNotStarted demands that fn has not begun so far.
func (h *holding) requireNotStarted() {
	h.t.Helper()
	select {
	case <-h.started:
		require.FailNow(h.t, "fn runs")
	default:
	}
}

func (h *holding) letGo(err error) {
	h.once.Do(func() {
		h.fn = err
		close(h.stop)
	})
}

// end has fn return nil, and returns what the call does.
func (h *holding) end() error { return h.endWith(nil) }

func (h *holding) endWith(err error) error {
	h.t.Helper()
	h.letGo(err)
	return h.wait()
}

// wait is for a call that ends by itself.
func (h *holding) wait() error {
	h.t.Helper()
	select {
	case <-h.returned:
	case <-time.After(patience):
		require.FailNow(h.t, "the call does not return")
	}
	return h.err
}

// requireLost waits for fn's context to end because the lock was lost, and returns the cause.
func (h *holding) requireLost(reason error) error {
	h.t.Helper()
	select {
	case <-h.ctx.Done():
	case <-time.After(patience):
		require.FailNow(h.t, "fn is not told that the lock is lost")
	}
	cause := context.Cause(h.ctx)
	require.ErrorIs(h.t, cause, loki.ErrLockLost)
	require.ErrorIs(h.t, cause, reason)
	return cause
}

// requireRuns runs a closure that has to run, once and without an error.
func requireRuns(t *testing.T, l *loki.Locker, opts ...loki.Option) loki.Outcome {
	t.Helper()
	var out loki.Outcome
	ran := 0
	err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { ran++; return nil },
		append(slices.Clone(opts), loki.WithOutcome(&out))...)
	require.NoError(t, err)
	require.Equal(t, 1, ran)
	require.True(t, out.Ran)
	return out
}

// requireSkipped runs a closure that must be skipped because the lock is held elsewhere.
func requireSkipped(t *testing.T, l *loki.Locker, opts ...loki.Option) {
	t.Helper()
	err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), opts...)
	require.ErrorIs(t, err, loki.ErrBusy)
	require.NotErrorIs(t, err, loki.ErrUnavailable)
}
