package loki_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

var everyMode = map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync}

// turn is one run of a closure that waits for its turn.
type turn struct {
	out loki.Outcome
	at  time.Duration // from the first one's start
	err error
}

// turnsOf has one closure of l run for work, and those of the others wait for it, in their order. It returns what became of
// all.
func (r *rig) turnsOf(l *loki.Locker, n int, work time.Duration, opts func(i int) []loki.Option, fn func(ctx context.Context, i int) error) []turn {
	turns := make([]turn, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range turns {
		wg.Go(func() {
			all := append(opts(i), loki.WithWait(loki.UntilDone), loki.WithOutcome(&turns[i].out))
			turns[i].err = l.ExecuteWithinLock(r.t.Context(), 30*time.Second, func(ctx context.Context) error {
				turns[i].at = time.Since(start)
				time.Sleep(work)
				return fn(ctx, i)
			}, all...)
		})
		synctest.Wait() // it runs, or waits
	}
	wg.Wait()
	return turns
}

func noOptions(int) []loki.Option         { return nil }
func succeeds(context.Context, int) error { return nil }
func (s *testStore) requests() int        { return len(s.Calls()) }
func (s *testStore) slow(takes time.Duration) { // every request takes that long
	for _, op := range everyOp {
		s.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: takes}})
	}
}

func TestHandOver_TheNextCallerOfThisProcessNeedsNoRequest(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				turns := r.turnsOf(r.locker(change), 5, 10*time.Millisecond, noOptions, succeeds)
				for i, turn := range turns {
					require.NoError(t, turn.err)
					require.Equal(t, turns[0].out.Fence, turn.out.Fence)
					require.Equal(t, turns[0].out.Store, turn.out.Store)
					require.Equal(t, time.Duration(i)*10*time.Millisecond, turn.at, "the next begins when the one before has ended")
				}
				synctest.Wait()
				require.Equal(t, 2, r.primary.requests(), "one lock, one release")
				require.LessOrEqual(t, r.secondary.requests(), 2)
				r.requireEmpty()
			})
		})
	}
}

// What the next caller wants, or what became of the one before, may need a request to a store.
func TestHandOver_NotWhereAStoreHasToKnow(t *testing.T) {
	const work = 10 * time.Millisecond
	with := func(o ...loki.Option) func(int) []loki.Option {
		return func(i int) []loki.Option {
			if i == 0 {
				return nil
			}
			return o
		}
	}
	tests := map[string]struct {
		opts func(int) []loki.Option
		fn   func(context.Context, int) error
		work time.Duration
		set  func(*rig)
	}{
		"a minimum hold":          {opts: with(loki.WithMinHold(time.Millisecond))},
		"an occurrence":           {opts: with(loki.WithOccurrence("monday", time.Hour))},
		"no renewal":              {opts: with(loki.WithoutRenewal())},
		"fn failed":               {fn: func(_ context.Context, i int) error { return map[int]error{0: errFn}[i] }},
		"a tenth of a second":     {work: 100 * time.Millisecond},
		"the mirror write is due": {set: func(r *rig) { r.secondary.slow(2 * work) }},
		"a mirror write failed":   {set: func(r *rig) { r.secondary.nextCall(lokitest.OpLock, lokitest.Fault{Err: errDown}) }},
		"an attempt may land late": {set: func(r *rig) {
			r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 130 * time.Millisecond}, Err: errDown},
				lokitest.Fault{Before: lokitest.Pause{For: 50 * time.Millisecond}})
		}},
		"a reply was lost": {set: func(r *rig) {
			r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: time.Second}})
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				if test.opts == nil {
					test.opts = noOptions
				}
				if test.fn == nil {
					test.fn = succeeds
				}
				if test.work == 0 {
					test.work = work
				}
				if test.set != nil {
					test.set(r)
				}
				turns := r.turnsOf(r.locker(), 2, test.work, test.opts, test.fn)
				require.NoError(t, turns[1].err)
				require.Greater(t, turns[1].out.Fence, turns[0].out.Fence)
				time.Sleep(time.Second)
			})
		})
	}
	t.Run("another expiry", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker(alone)
			ls, err := l.Acquire(t.Context(), 30*time.Second)
			require.NoError(t, err)
			var next *loki.Lease
			var wg sync.WaitGroup
			wg.Go(func() { next, err = l.Acquire(t.Context(), 31*time.Second, loki.WithWait(time.Second)) })
			synctest.Wait()
			require.NoError(t, ls.Release(t.Context()))
			wg.Wait()
			require.NoError(t, err)
			require.Greater(t, next.Fence(), ls.Fence())
			require.NoError(t, next.Release(t.Context()))
		})
	})
}

// A process whose callers follow one another lets those of other processes in, however short its turns are.
func TestHandOver_AnotherProcessGetsItsTurn(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.primary.slow(3 * time.Millisecond)
				r.secondary.slow(3 * time.Millisecond)
				busy, other := r.locker(change), r.locker(change)
				stop, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for stop.Err() == nil {
							require.NoError(t, busy.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
								time.Sleep(time.Millisecond)
								return nil
							}, loki.WithWait(loki.UntilDone)))
						}
					})
				}
				time.Sleep(20 * time.Millisecond)
				for range 20 {
					out := r.requireRan(other, loki.WithWait(loki.UntilDone))
					require.Less(t, out.Waited, 150*time.Millisecond)
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

func TestHandOver_TheLeaseIsRenewedAndLostLikeAnother(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				fn := func(ctx context.Context, i int) error {
					if i == 0 {
						return nil
					}
					time.Sleep(5 * time.Minute)
					require.NoError(t, ctx.Err(), "it was renewed")
					r.primary.lose(t, r.primary.lastToken())
					r.secondary.lose(t, r.primary.lastToken())
					<-ctx.Done()
					return context.Cause(ctx)
				}
				turns := r.turnsOf(l, 2, 10*time.Millisecond, noOptions, fn)
				require.NoError(t, turns[0].err)
				require.ErrorIs(t, turns[1].err, loki.ErrLockLost)
				require.ErrorIs(t, turns[1].err, loki.ErrNotHeld)
				require.Len(t, r.events(loki.KindLost), 1)
			})
		})
	}
}

// A caller whose context ends at the moment of the hand-over has not run, and leaves nothing behind.
func TestHandOver_ToACallerThatHasJustGone(t *testing.T) {
	for name, change := range everyMode {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				for range 50 {
					ls, err := l.Acquire(t.Context(), 30*time.Second)
					require.NoError(t, err)
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					ran, nextErr := false, error(nil)
					wg.Go(func() {
						nextErr = l.ExecuteWithinLock(ctx, 30*time.Second, func(ctx context.Context) error { ran = true; return ctx.Err() }, loki.WithWait(loki.UntilDone))
					})
					synctest.Wait()
					cancel() // and before the waiter has noticed:
					require.NoError(t, ls.Release(t.Context()))
					wg.Wait()
					require.False(t, ran)
					require.ErrorIs(t, nextErr, context.Canceled)
					require.NoError(t, ls.Release(t.Context()), "a second release has nothing to do with the next lease")
					r.requireRan(l)
				}
			})
		})
	}
}

func TestHandOver_CloseEndsTheLease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		first, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		var next *loki.Lease
		var wg sync.WaitGroup
		wg.Go(func() { next, err = l.Acquire(t.Context(), 30*time.Second, loki.WithWait(time.Second)) })
		synctest.Wait()
		require.NoError(t, first.Release(t.Context()))
		wg.Wait()
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(first.Context()), context.Canceled)
		require.Equal(t, 1, loki.ToClose(l))
		require.NoError(t, next.Context().Err())
		require.NoError(t, l.Close(t.Context()))
		require.ErrorIs(t, context.Cause(next.Context()), loki.ErrClosed)
		r.requireEmpty()
	})
}

// After a hand-over this process leaves the free lock to others for a moment. A caller whose wait ends in it is not busy.
func TestHandOver_AWaitThatEndsInThePauseAsks(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 120 * time.Millisecond}})
		work := func(opts ...loki.Option) error {
			return l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(70 * time.Millisecond)
				return nil
			}, opts...)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.NoError(t, work(loki.WithWait(time.Second))) })
		}
		time.Sleep(time.Millisecond)
		require.NoError(t, work(loki.WithWait(300*time.Millisecond))) // the lock is free from 260 ms on, and the pause ends at 510 ms
		wg.Wait()
		require.Len(t, r.primary.Calls(lokitest.OpLock), 2)
	})
}

// A waiter that asks the store is in the middle of an acquisition of its own.
func TestHandOver_NotToAWaiterThatAsks(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 50 * time.Millisecond}})
		var waited loki.Outcome
		var wg sync.WaitGroup
		wg.Go(func() { waited = r.requireRan(l, loki.WithWait(time.Second)) })
		synctest.Wait()
		skipped := r.requireRan(l)
		wg.Wait()
		require.Greater(t, waited.Fence, skipped.Fence)
	})
}

// The first lease's context has ended, so it was renewed no longer: little of the claim is left.
func TestHandOver_NotOfAClaimWhoseRenewalIsOverdue(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, fences := r.locker(alone), make(chan int64, 2)
		run := func(ctx context.Context, opts ...loki.Option) error {
			return l.ExecuteWithinLock(ctx, 150*time.Millisecond, func(ctx context.Context) error {
				ls, _ := loki.LeaseFromContext(ctx)
				fences <- ls.Fence()
				time.Sleep(90 * time.Millisecond)
				return nil
			}, opts...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, run(ctx)) })
		synctest.Wait()
		require.NoError(t, run(t.Context(), loki.WithWait(time.Second)))
		wg.Wait()
		first, second := <-fences, <-fences
		require.Less(t, first, second)
	})
}

func TestHandOver_ThePauseHasABound(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone, func(c *loki.Config) { c.PrimaryTimeout = 3 * time.Second })
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 700 * time.Millisecond}})
		turns := r.turnsOf(l, 3, 60*time.Millisecond, noOptions, succeeds)
		for _, turn := range turns {
			require.NoError(t, turn.err)
		}
		require.Equal(t, turns[0].out.Fence, turns[1].out.Fence)
		require.LessOrEqual(t, turns[2].at-turns[1].at, 60*time.Millisecond+lateByPoll)
	})
}
