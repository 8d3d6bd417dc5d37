package loki_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

// stuckHandler ignores its ctx until it is let go.
type stuckHandler struct {
	*memhandler.Handler
	until         chan struct{}
	running, peak atomic.Int64
}

// Bounds returns false: its methods do not return when they should.
func (*stuckHandler) Bounds() bool { return false }

func newStuckHandler(until chan struct{}) *stuckHandler {
	return &stuckHandler{Handler: memhandler.New(), until: until}
}

func (h *stuckHandler) most() int64 { return h.peak.Load() }

func (h *stuckHandler) wait() {
	if n := h.running.Add(1); n > h.peak.Load() {
		h.peak.Store(n)
	}
	<-h.until
	h.running.Add(-1)
}

func (h *stuckHandler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	h.wait()
	return h.Handler.Grant(ctx, c)
}

func (h *stuckHandler) Release(ctx context.Context, c loki.Claim) error {
	h.wait()
	return h.Handler.Release(ctx, c)
}

func TestObserver_NeverHoldsUpALockOrItsRenewal(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		until := make(chan struct{})
		l := r.locker(func(c *loki.Config) { c.Observer = func(context.Context, loki.Event) { <-until } })
		start := time.Now()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}))
		require.Equal(t, time.Minute, time.Since(start))
		close(until)
	})
}

func TestObserver_MissesEventsRatherThanGrow(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		until := make(chan struct{})
		var dropped []loki.Event
		l := r.locker(alone, func(c *loki.Config) {
			c.Observer = func(_ context.Context, e loki.Event) {
				<-until
				if e.Kind == loki.KindDropped {
					dropped = append(dropped, e)
				}
			}
		})
		for range 3000 {
			r.requireRan(l)
		}
		close(until)
		require.NoError(t, l.Close(t.Context()))
		require.Len(t, dropped, 1)
		require.ErrorContains(t, dropped[0].Err, "missed")
	})
}

func TestObserver_PanicIsToldToItOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		var panics []loki.Event
		l := r.locker(alone, func(c *loki.Config) {
			c.Observer = func(_ context.Context, e loki.Event) {
				if e.Kind == loki.KindPanic {
					panics = append(panics, e)
				}
				panic("logger bug")
			}
		})
		r.requireRan(l)
		synctest.Wait()
		require.Len(t, panics, 2, "acquired and released")
		require.ErrorContains(t, panics[0].Err, "logger bug")
	})
}

func TestLogEvents(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(lockedWriter{&mu, &out}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := r.locker(func(c *loki.Config) { c.Observer = loki.LogEvents(logger) })
		lines := func(level string) int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return strings.Count(out.String(), "level="+level)
		}
		// What is normal is quiet: runs, renewals, skips.
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 300*time.Millisecond, func(context.Context) error {
			time.Sleep(3 * time.Second)
			for range 100 {
				r.requireBusy(l)
			}
			return nil
		}))
		require.Zero(t, lines("WARN")+lines("ERROR"))
		require.Greater(t, lines("DEBUG"), 100)

		// An outage is one line for each store, however many calls it fails, and one when it is over.
		r.primary.fail(errDown)
		r.requireRan(l)
		time.Sleep(time.Second)
		r.secondary.fail(errDown)
		for range 10 {
			require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t), loki.WithWait(5*time.Second)), loki.ErrUnavailable)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 1, lines("WARN"), "the primary, while the secondary could decide")
		require.Equal(t, 1, lines("ERROR"), "the secondary: now nothing runs")
		require.Zero(t, lines("INFO"))
		r.primary.heal()
		r.secondary.heal()
		time.Sleep(2 * loki.BreakerMaxPause)
		require.Equal(t, 2, lines("INFO"))
		mu.Lock()
		defer mu.Unlock()
		const why = `err="dial tcp: connection refused"`
		require.Contains(t, out.String(), `level=WARN msg="loki: down" key=job store=primary op=lock `+why)
		require.Contains(t, out.String(), `level=ERROR msg="loki: down" key=job store=secondary op=lock `+why)
		require.Regexp(t, `level=INFO msg="loki: up" store=primary took=1m\S+ calls=11\n`, out.String())
		require.Contains(t, out.String(), `level=DEBUG msg="loki: unavailable" key=job`)
		require.NotContains(t, out.String(), `\n`)
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}
