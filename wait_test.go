package loki_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// The longest that a waiter may be late, jitter included.
const (
	lateByRecheck = 2*time.Second + 2*time.Second/8               // a message was lost
	lateByPoll    = 250*time.Millisecond + 250*time.Millisecond/8 // there is no notifier
	lateByExpiry  = 4 * time.Millisecond                          // nobody released
)

// grantedAfter has l wait for a holder that holds for d, and returns how long after its end fn began.
func (r *rig) grantedAfter(l *loki.Locker, d time.Duration, end func()) time.Duration {
	r.t.Helper()
	over := time.Now().Add(d)
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(d)
		end()
	})
	var began time.Time
	err := l.ExecuteWithinLock(r.t.Context(), 30*time.Second, func(context.Context) error {
		began = time.Now()
		return nil
	}, loki.WithWait(loki.UntilDone))
	require.NoError(r.t, err)
	wg.Wait()
	return began.Sub(over)
}

// releasedAfter is grantedAfter with a holder of another instance, that renews and releases.
func (r *rig) releasedAfter(l *loki.Locker, d time.Duration, change ...func(*loki.Config)) time.Duration {
	r.t.Helper()
	ls, err := r.locker(change...).Acquire(r.t.Context(), 30*time.Second)
	require.NoError(r.t, err)
	return r.grantedAfter(l, d, func() { _ = ls.Release(r.t.Context()) })
}

func (r *rig) requireNobodyListens() {
	r.t.Helper()
	synctest.Wait()
	require.Empty(r.t, r.primary.mem.ListenedKeys(), "primary")
	require.Empty(r.t, r.secondary.mem.ListenedKeys(), "secondary")
}

func TestWait_GrantedAtTheMomentOfTheRelease(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"one store": alone, "mirrored": func(*loki.Config) {}, "mirrored in step": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				for _, d := range []time.Duration{0, 1, 7 * time.Millisecond, 1234 * time.Millisecond, 3 * time.Minute} {
					require.Zero(t, r.releasedAfter(l, d, change), d)
				}
				r.requireNobodyListens()
			})
		})
	}
}

// The release comes after the store has said busy, and before its notifier listens.
func TestWait_FreedBeforeTheNotifierListened(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		const slow = 100 * time.Millisecond
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Before: lokitest.Pause{For: slow}})
		require.Equal(t, slow/2, r.releasedAfter(r.locker(alone), slow/2, alone))
	})
}

// The first in line is the one for whom the notifier listens, and he gives up.
func TestWait_TheNextInLineIsToldToo(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ls, err := r.locker(alone).Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		go func() { _ = l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone)) }()
		synctest.Wait()
		require.Zero(t, r.grantedAfter(l, 20*time.Second, func() { _ = ls.Release(t.Context()) }))
		require.Len(t, r.primary.Calls(lokitest.OpNotify), 1)
	})
}

func TestWait_AsksLittle(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		const wait = 10 * time.Minute
		require.Zero(t, r.releasedAfter(l, wait, alone))
		asked := len(r.primary.Calls(lokitest.OpLock))
		const (
			holder    = 1 // the holder's own
			first     = 1 // is anybody there?
			listening = 1 // has it been freed since, and before the notifier listened?
			freed     = 1 // a message came
			inAMinute = 34
		)
		// The rest is in case a message was lost: one for each recheck pause of 2s, an eighth more or less.
		rechecks := asked - holder - first - listening - freed
		require.GreaterOrEqual(t, rechecks, int(wait/lateByRecheck))
		require.LessOrEqual(t, rechecks, 10*inAMinute+3)
		require.Len(t, r.primary.Calls(lokitest.OpNotify), 1, "it listens once")
	})
}

// A holder that crashed releases nothing, and nobody tells.
func TestWait_ServedAfterACrashedHoldersExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		for _, expiry := range []time.Duration{15 * time.Millisecond, 700 * time.Millisecond, 10 * time.Second, 10*time.Minute + 1234*time.Millisecond} {
			r.primary.plant(t, foreign(expiry))
			late := r.grantedAfter(l, expiry, func() {})
			require.Positive(t, late)
			require.LessOrEqual(t, late, lateByExpiry, expiry)
		}
	})
}

// The holder gives up what is left of a long expiry, and crashes.
func TestWait_ServedAfterAnExpiryThatWasMadeShorter(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		const early, short = 10 * time.Second, 15 * time.Millisecond
		for range 5 {
			c := foreign(time.Hour)
			r.primary.plant(t, c)
			time.AfterFunc(early, func() {
				c.Expiry = short
				_, _ = r.primary.mem.Extend(t.Context(), c)
			})
			require.LessOrEqual(t, r.grantedAfter(l, early+short, func() {}), lateByExpiry)
		}
	})
}

func TestWait_ALostMessageCostsARecheck(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Refuse: true})
		l := r.locker(alone)
		const wait = 21 * time.Second
		late := r.releasedAfter(l, wait, alone)
		require.Positive(t, late, "somebody told")
		require.LessOrEqual(t, late, lateByRecheck)
		require.Less(t, len(r.primary.Calls(lokitest.OpLock)), 20, "it does not poll")
	})
}

func TestWait_PollsWithoutANotifier(t *testing.T) {
	for name, fault := range map[string]lokitest.Fault{
		"unsupported":     {Err: errors.ErrUnsupported},
		"refused":         {Err: errDown},
		"a reply is lost": {Err: errDown, LostReply: true},
		"hangs":           {Before: lokitest.Pause{For: longest}},
		"hangs, deaf":     {Before: lokitest.Pause{For: time.Hour, IgnoreCtx: true}},
		"hangs after":     {After: lokitest.Pause{For: longest}},
		"panics":          {Panic: errFn},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.primary.faults.Set(lokitest.OpNotify, fault)
				l := r.locker(alone)
				require.LessOrEqual(t, r.releasedAfter(l, 10*time.Second, alone), lateByPoll)
				require.Greater(t, len(r.primary.Calls(lokitest.OpLock)), 30, "it has polled")
				require.Len(t, r.primary.Calls(lokitest.OpNotify), 1, "what failed is not asked again while somebody waits")
				time.Sleep(2 * time.Hour) // what hangs has returned
				r.requireNobodyListens()
			})
		})
	}
}

// changedNotifier is a store with a notifier of another kind.
type changedNotifier struct {
	*testStore
	notify func(ctx context.Context, key string) (<-chan struct{}, error)
}

func (s changedNotifier) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	return s.notify(ctx, key)
}

func TestWait_PollsWhenTheNotifierGivesUp(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Second} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone, func(c *loki.Config) {
					c.Primary = changedNotifier{r.primary, func(context.Context, string) (<-chan struct{}, error) {
						frees := make(chan struct{})
						time.AfterFunc(after, func() { close(frees) })
						return frees, nil
					}}
				})
				require.LessOrEqual(t, r.releasedAfter(l, 20*time.Second, alone), lateByPoll)
				require.Less(t, len(r.primary.Calls(lokitest.OpLock)), 120, "a closed channel is always ready: it was read again and again")

				// Whoever comes next in line is told by the same closed channel.
				r.primary.plant(t, foreign(20*time.Second))
				ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
				defer cancel()
				go func() { _ = l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone)) }()
				synctest.Wait()
				require.LessOrEqual(t, r.grantedAfter(l, 20*time.Second, func() {}), lateByPoll)
			})
		})
	}
}

func TestWait_NothingIsLeftOfThoseWhoGaveUp(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		lockers := []*loki.Locker{r.locker(), r.locker(alone), r.locker()}
		r.primary.plant(t, foreign(time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				ctx, limit := ctx, loki.UntilDone
				if i%2 == 0 {
					ctx, limit = t.Context(), time.Duration(1+i)*time.Second
				}
				err := lockers[i%3].ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(limit))
				if i%3 == 2 && i%2 != 0 {
					require.ErrorIs(t, err, loki.ErrClosed)
				} else {
					require.ErrorIs(t, err, loki.ErrBusy)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, []string{"job"}, r.primary.mem.ListenedKeys())
		require.Len(t, r.primary.Calls(lokitest.OpNotify), len(lockers), "one listener serves all who wait here")
		time.Sleep(time.Minute)
		require.NoError(t, lockers[2].Close(t.Context()))
		require.Equal(t, []string{"job"}, r.primary.mem.ListenedKeys())
		cancel()
		wg.Wait()
		r.requireNobodyListens()
		require.NoError(t, r.primary.mem.Release(t.Context(), foreign(0)))
	})
}

func TestWait_EverybodyIsServedOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		const waiters, work = 100, 10 * time.Millisecond
		lockers := []*loki.Locker{r.locker(), r.locker(), r.locker()}
		r.primary.plant(t, foreign(time.Hour))
		var served [waiters]atomic.Int32
		var running atomic.Int32
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				require.NoError(t, lockers[i%3].ExecuteWithinLock(t.Context(), time.Second, func(context.Context) error {
					require.EqualValues(t, 1, running.Add(1), "two at a time")
					time.Sleep(work)
					running.Add(-1)
					served[i].Add(1)
					return nil
				}, loki.WithWait(loki.UntilDone)))
			})
		}
		time.Sleep(time.Minute)
		released := time.Now()
		require.NoError(t, r.primary.mem.Release(t.Context(), foreign(0)))
		wg.Wait()
		const pauses = 3 * 12 * time.Millisecond
		// Each begins when the one before has ended, but for the pauses after hand-overs, when no other process waits.
		require.InDelta(t, waiters*work+pauses/2, time.Since(released), float64(pauses/2))
		for i := range served {
			require.EqualValues(t, 1, served[i].Load())
		}
		r.requireNobodyListens()
	})
}

// A limit bounds the waiting: the attempt of a call with a wait gets as much time as that of a call without.
func TestWaitLimitNeverCutsAnAttemptShort(t *testing.T) {
	slow := func(d time.Duration) lokitest.Fault { return lokitest.Fault{Before: lokitest.Pause{For: d}} }
	for name, c := range map[string]struct {
		change             func(*loki.Config)
		primary, secondary lokitest.Fault
		took               time.Duration
	}{
		"alone":               {alone, slow(5 * time.Millisecond), lokitest.Fault{}, 5 * time.Millisecond},
		"async":               {func(*loki.Config) {}, slow(5 * time.Millisecond), lokitest.Fault{}, 5 * time.Millisecond},
		"sync":                {inSync, slow(5 * time.Millisecond), slow(7 * time.Millisecond), 12 * time.Millisecond},
		"sync, secondary":     {inSync, lokitest.Fault{}, slow(5 * time.Millisecond), 5 * time.Millisecond},
		"fallback":            {func(*loki.Config) {}, lokitest.Fault{Err: errDown}, slow(5 * time.Millisecond), 5 * time.Millisecond},
		"fallback, no answer": {inSync, slow(longest), slow(5 * time.Millisecond), loki.DefaultPrimaryTimeout + 5*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(c.change)
				r.primary.faults.Set(lokitest.OpLock, c.primary)
				r.secondary.faults.Set(lokitest.OpLock, c.secondary)
				require.Equal(t, c.took, r.requireRan(l, loki.WithWait(3*time.Millisecond)).Waited)
			})
		})
	}
}

// Nobody behind another caller of the process is without an answer of its own, either.
func TestWaitLimitEndsBeforeTheFirstAnswer(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		slow := lokitest.Fault{Before: lokitest.Pause{For: 50 * time.Millisecond}}
		r.primary.faults.Set(lokitest.OpLock, slow)
		var wg sync.WaitGroup
		var ran atomic.Int32
		for range 10 {
			wg.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
					ran.Add(1)
					time.Sleep(time.Second)
					return nil
				}, loki.WithWait(3*time.Millisecond))
				require.NoError(t, loki.IgnoreBusy(err))
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, ran.Load())

		r.primary.hang()
		start := time.Now()
		for range 10 {
			wg.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(3*time.Millisecond))
				require.ErrorIs(t, err, loki.ErrUnavailable)
				require.NotErrorIs(t, err, loki.ErrBusy, "an outage must not look like contention")
			})
		}
		wg.Wait()
		require.LessOrEqual(t, time.Since(start), 3*time.Millisecond+loki.DefaultPrimaryTimeout)
		require.Len(t, r.events(loki.KindUnavailable), 10)
	})
}

// The holder releases around the moment at which the waits of the others end, and every attempt takes a while.
func TestWaitEndsBusyBehindAHolder(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		for where, another := range map[string]bool{"in this process": false, "in another": true} {
			t.Run(name+"/"+where, func(t *testing.T) {
				inRig(t, func(t *testing.T, r *rig) {
					l := r.locker(change)
					holder := l
					if another {
						holder = r.locker(change)
					}
					const limit = 100 * time.Millisecond
					for early := -3 * time.Millisecond; early <= 3*time.Millisecond; early += time.Millisecond / 2 {
						ls, err := holder.Acquire(t.Context(), time.Minute)
						require.NoError(t, err)
						synctest.Wait() // for the mirror write, which another test slows down
						r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Millisecond}})
						var wg sync.WaitGroup
						wg.Go(func() {
							time.Sleep(limit - early)
							_ = ls.Release(t.Context())
						})
						start := time.Now()
						for range 5 {
							wg.Go(func() {
								err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
									time.Sleep(time.Second)
									return nil
								}, loki.WithWait(limit))
								if err != nil {
									require.ErrorIs(t, err, loki.ErrBusy, "the holder released %v before the limit", early)
									require.NotErrorIs(t, err, loki.ErrUnavailable)
									require.Less(t, time.Since(start), limit+5*time.Millisecond)
								}
							})
						}
						// One whose context ends in the queue learns both.
						wg.Go(func() {
							ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errFn)
							defer cancel()
							err := l.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error { return nil }, loki.WithWait(loki.UntilDone))
							if err != nil {
								require.ErrorIs(t, err, loki.ErrBusy)
								require.ErrorIs(t, err, context.DeadlineExceeded)
								require.ErrorIs(t, err, errFn)
							}
						})
						wg.Wait()
						r.primary.heal()
						time.Sleep(time.Minute)
						r.requireEmpty()
					}
					for _, kind := range []loki.EventKind{loki.KindUnavailable, loki.KindFellBack, loki.KindLost} {
						require.Empty(t, r.events(kind), "nobody is paged for contention")
					}
				})
			})
		}
	}
}

// An outage that only the caller's own deadline or expiry makes is not one for the others.
func TestWaitOfACallerWithoutTimeEndsNoOther(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.plant(t, foreign(10*time.Second))
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}})
		r.secondary.fail(errDown)
		var wg sync.WaitGroup
		wg.Go(func() {
			err := l.ExecuteWithinLock(t.Context(), loki.MinExpiry, mustNotRun(t), loki.WithWait(loki.UntilDone))
			require.ErrorIs(t, err, loki.ErrUnavailable)
			require.ErrorContains(t, err, "left no more time")
		})
		synctest.Wait()
		wg.Go(func() { r.requireRan(l, loki.WithWait(loki.UntilDone)) })
		wg.Wait()
		require.Empty(t, r.events(loki.KindFellBack))
	})
}

// The last attempts before the end of ctx have hardly any time, and the secondary is of no help.
func TestWaitOfACallerWithAShortExpiryEndsNoOther(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		held, err := r.locker(alone).Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		for _, op := range everyOp {
			r.primary.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: 60 * time.Millisecond}, After: lokitest.Pause{For: 60 * time.Millisecond}})
		}
		var short, long error
		var waiters sync.WaitGroup
		waiters.Go(func() {
			short = l.ExecuteWithinLock(t.Context(), 300*time.Millisecond, mustNotRun(t), loki.WithWait(loki.UntilDone))
		})
		synctest.Wait() // it is the first in line
		waiters.Go(func() { long = r.try(l, loki.WithWait(loki.UntilDone)) })
		time.Sleep(2 * time.Second)
		require.NoError(t, held.Release(t.Context()))
		waiters.Wait()
		require.ErrorIs(t, short, loki.ErrUnavailable, "a third of its expiry is less than the store takes")
		require.NoError(t, long)
	})
}

func TestWaitEndsBusyAndWithTheContextWhateverTheSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		c := foreign(time.Hour)
		r.primary.plant(t, c)
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}})
		r.primary.faults.Set(lokitest.OpNotify, lokitest.Fault{Err: errors.ErrUnsupported}) // so that it polls
		r.secondary.fail(errDown)
		for d := 60 * time.Millisecond; d < time.Second; d += 7 * time.Millisecond {
			ctx, cancel := context.WithTimeoutCause(t.Context(), d, errFn)
			start := time.Now()
			err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
			cancel()
			require.ErrorIs(t, err, loki.ErrBusy, d)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errFn)
			require.NotErrorIs(t, err, loki.ErrUnavailable)
			require.Equal(t, d, time.Since(start))
		}
		require.Empty(t, r.events(loki.KindUnavailable))
		require.NoError(t, r.primary.mem.Release(t.Context(), c))
	})
}

// What the tests above say in a bubble, with a real server that is 5 ms away.
func TestWaitOnAServerFarAwayIsNoOutage(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	proxy, through := r.proxy()
	const away = 5 * time.Millisecond
	proxy.Delay(away)
	log := &eventLog{}
	l := instance(t, r.handler(through), nil, watched(log))
	requireRuns(t, l) // connects
	for range 20 {
		out := requireRuns(t, l, loki.WithWait(away/2))
		require.GreaterOrEqual(t, out.Waited, away)
	}
	const limit = 20 * time.Millisecond
	for i := range 40 {
		ls, err := l.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithWait(limit))
				if err != nil && !errors.Is(err, loki.ErrBusy) {
					t.Errorf("neither run nor busy: %v", err)
				}
			})
		}
		time.Sleep(limit - away + time.Duration(i)*away/40) // some release before the limit, some after
		require.NoError(t, ls.Release(t.Context()))
		wg.Wait()
	}
	require.Empty(t, log.of(loki.KindUnavailable))
	r.requireEmpty()
}

func TestWait_ShortExpiryDoesNotEndTheWaitsOfOthers(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.fail(errDown)
		r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 2500 * time.Millisecond}}) // within its timeout of 3 s
		l := r.locker()
		short, long := make(chan error, 1), make(chan error, 1)
		go func() {
			short <- l.ExecuteWithinLock(t.Context(), 2*time.Second, func(context.Context) error { return nil }, loki.WithWait(time.Minute))
		}()
		time.Sleep(100 * time.Millisecond)
		go func() {
			long <- l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil }, loki.WithWait(time.Minute))
		}()
		require.ErrorIs(t, <-short, loki.ErrUnavailable)
		require.NoError(t, <-long, "the secondary answers whoever gives it its time")
	})
}

// The store fails one request. That ends the waits of this moment. Those that begin afterwards, of the same callers, ask for
// themselves.
func TestWait_AnOutageEndsNoWaitThatBeganAfterIt(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: 10 * time.Millisecond}, Err: errDown})
		const callers = 20
		var failed atomic.Int32
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for failed.Load() < 10*callers {
					err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { return nil }, loki.WithWait(time.Minute))
					if err == nil {
						return
					}
					require.ErrorIs(t, err, loki.ErrUnavailable)
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, failed.Load(), int32(callers))
	})
}

// The primary's notifier knows nothing of a lock that the secondary has granted.
func TestWait_ForAHolderInTheSecondaryPolls(t *testing.T) {
	for i := range 20 {
		inRig(t, func(t *testing.T, r *rig) {
			r.primary.fail(errDown, lokitest.OpLock, lokitest.OpExtend) // it can be listened to
			ls, err := r.locker().Acquire(t.Context(), 30*time.Second)
			require.NoError(t, err)
			late := r.grantedAfter(r.locker(), 5*time.Second+time.Duration(i)*97*time.Millisecond, func() { _ = ls.Release(t.Context()) })
			require.LessOrEqual(t, late, lateByPoll)
		})
	}
}

// The primary is free, and the secondary names a holder that only that knows.
func TestWait_ForAHolderThatThePrimaryDoesNotKnowPolls(t *testing.T) {
	tests := map[string]func(r *rig) *loki.Locker{
		"sync": func(r *rig) *loki.Locker { return r.locker(inSync) },
		"async, and the secondary is silent": func(r *rig) *loki.Locker {
			l := r.locker()
			require.ErrorIs(r.t, l.ExecuteWithinLock(r.t.Context(), 30*time.Second, func(context.Context) error {
				time.Sleep(time.Second)
				return nil
			}), loki.ErrConflict)
			r.secondary.fail(errDown, lokitest.OpLock)
			return l
		},
	}
	for name, locker := range tests {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				r.secondary.plant(t, foreign(time.Minute))
				late := r.grantedAfter(locker(r), 5*time.Second, func() {
					require.NoError(t, r.secondary.mem.Release(t.Context(), foreign(0)))
					r.secondary.heal()
				})
				require.LessOrEqual(t, late, lateByPoll+250*time.Millisecond) // an attempt that began before has its grace
			})
		})
	}
}
