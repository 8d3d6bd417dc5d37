package loki_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

// Healed right after a look.
func TestFixed_BreakerNoAlternative2(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a := r.locker()
		r.primary.fail(errDown)
		r.secondary.fail(errDown)
		start := time.Now()
		for time.Since(start) < 3700*time.Millisecond {
			_ = a.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t))
			time.Sleep(50 * time.Millisecond)
		}
		r.primary.heal()
		r.primary.Reset()
		healed := time.Now()
		for {
			err := a.ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error { return nil })
			if err == nil {
				break
			}
			require.ErrorIs(t, err, loki.ErrUnavailable)
			time.Sleep(20 * time.Millisecond)
		}
		took := time.Since(healed)
		t.Log(took)
		require.Less(t, took, 500*time.Millisecond, "the primary was healthy and not asked for so long")
	})
}

// Close returns before a release that has begun.
func TestFixed_CloseBeforeRelease(t *testing.T) {
	early := 0
	for range 3000 {
		mem := memhandler.New()
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: mem})
		require.NoError(t, err)
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		done := make(chan bool)
		go func() {
			<-ls.Context().Done()
			_ = l.Close(t.Context())
			done <- len(mem.HeldKeys()) > 0
		}()
		runtime.Gosched()
		_ = ls.Release(t.Context())
		if <-done {
			early++
		}
	}
	require.Zero(t, early)
}

// With calls of Close spinning beside Release.
func TestFixed_CloseBeforeReleaseSpin(t *testing.T) {
	early := 0
	for range 20000 {
		mem := memhandler.New()
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: mem})
		require.NoError(t, err)
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		start := make(chan struct{})
		done := make(chan bool)
		go func() {
			<-start
			_ = l.Close(t.Context())
			done <- len(mem.HeldKeys()) > 0
		}()
		close(start)
		_ = ls.Release(t.Context())
		if <-done {
			early++
		}
	}
	require.Zero(t, early)
}

// Stress on the real scheduler.
func TestStress(t *testing.T) {
	before := runtime.NumGoroutine()
	for round := range 6 {
		pm, sm := memhandler.New(), memhandler.New()
		pf, sf := lokitest.NewFaults(pm), lokitest.NewFaults(sm)
		jitter := func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			switch rand.IntN(30) {
			case 0:
				return lokitest.Fault{Err: errDown}
			case 1:
				return lokitest.Fault{Err: errDown, LostReply: true}
			case 2:
				return lokitest.Fault{Before: lokitest.Pause{For: time.Duration(rand.IntN(60)) * time.Millisecond, IgnoreCtx: true}}
			}
			return lokitest.Fault{Before: lokitest.Pause{For: time.Duration(rand.IntN(500)) * time.Microsecond}}
		}
		pf.Decide(jitter)
		sf.Decide(jitter)
		mode := loki.MirrorSync
		var lockers []*loki.Locker
		for i := range 3 {
			l, err := loki.New(loki.Config{ServiceKey: "job", Holder: fmt.Sprint(i), Primary: pf, Secondary: sf, Mirror: mode, PrimaryTimeout: 30 * time.Millisecond, SecondaryTimeout: 50 * time.Millisecond,
				Observer: func(context.Context, loki.Event) {}})
			require.NoError(t, err)
			lockers = append(lockers, l)
		}
		var mu sync.Mutex // guards inside: the contexts of who works under each key
		var inside [4]map[context.Context]bool
		for k := range inside {
			inside[k] = make(map[context.Context]bool)
		}
		var wg sync.WaitGroup
		var ran atomic.Int32
		stop := time.Now().Add(1500 * time.Millisecond)
		for g := range 24 {
			wg.Go(func() {
				for time.Now().Before(stop) {
					l := lockers[(g+rand.IntN(2))%3]
					k := rand.IntN(4)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(300))*time.Millisecond)
					opts := []loki.Option{loki.WithResource(fmt.Sprint(k))}
					if rand.IntN(2) == 0 {
						opts = append(opts, loki.WithWait(time.Duration(rand.IntN(100))*time.Millisecond))
					}
					if rand.IntN(8) == 0 {
						opts = append(opts, loki.WithMinHold(time.Duration(rand.IntN(20))*time.Millisecond))
					}
					enter := func(ctx context.Context) {
						if ctx.Err() != nil {
							return
						}
						ran.Add(1)
						mu.Lock()
						for other := range inside[k] {
							// Who is still inside when its context has ended, as after Close, has no lock any more.
							if other.Err() == nil && ctx.Err() == nil {
								t.Error("two inside")
							}
						}
						inside[k][ctx] = true
						mu.Unlock()
						time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
						mu.Lock()
						delete(inside[k], ctx)
						mu.Unlock()
					}
					switch rand.IntN(4) {
					case 0:
						ls, err := l.Acquire(ctx, 2*time.Second, opts...)
						if err == nil {
							enter(ls.Context())
							var w2 sync.WaitGroup
							for range 3 {
								w2.Go(func() { _ = ls.Release(ctx) })
							}
							w2.Wait()
						}
					case 1:
						done := make(chan struct{})
						go func() {
							defer close(done)
							_ = l.ExecuteWithinLock(ctx, 2*time.Second, func(ctx context.Context) error { enter(ctx); runtime.Goexit(); return nil }, opts...)
						}()
						<-done
					case 2:
						func() {
							defer func() { _ = recover() }()
							_ = l.ExecuteWithinLock(ctx, 2*time.Second, func(ctx context.Context) error { enter(ctx); panic("x") }, opts...)
						}()
					default:
						err := l.ExecuteWithinLock(ctx, 2*time.Second, func(ctx context.Context) error { enter(ctx); return nil }, opts...)
						if err != nil && !errors.Is(err, loki.ErrBusy) && !errors.Is(err, loki.ErrUnavailable) && !errors.Is(err, loki.ErrLockLost) && !errors.Is(err, loki.ErrClosed) && ctx.Err() == nil {
							t.Error(err)
						}
					}
					cancel()
				}
			})
		}
		time.AfterFunc(1300*time.Millisecond, func() { wg.Go(func() { _ = lockers[0].Close(t.Context()) }); _ = lockers[0].Close(t.Context()) })
		wg.Wait()
		for _, l := range lockers {
			require.NoError(t, l.Close(t.Context()))
		}
		pf.Clear()
		sf.Clear()
		t.Log("round", round, "ran", ran.Load())
		require.Eventually(t, func() bool { return len(pm.HeldKeys())+len(sm.HeldKeys()) == 0 }, 5*time.Second, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 5*time.Second, 20*time.Millisecond, "goroutines: %d before, %d now", before, runtime.NumGoroutine())
}

// Many waiters on one key with -race: everybody is served, nobody is lost.
func TestStress_WaitersAreAllServed(t *testing.T) {
	mem := memhandler.New()
	var ls []*loki.Locker
	for range 3 {
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: mem})
		require.NoError(t, err)
		ls = append(ls, l)
	}
	var wg sync.WaitGroup
	var n atomic.Int32
	start := time.Now()
	for i := range 300 {
		wg.Go(func() {
			err := ls[i%3].ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { n.Add(1); return nil }, loki.WithWait(loki.UntilDone))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Log(time.Since(start))
	require.Equal(t, int32(300), n.Load())
	require.Less(t, time.Since(start), 3*time.Second)
}

var _ = strings.Contains
