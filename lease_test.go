package loki_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

func TestMargin(t *testing.T) {
	require.Equal(t, time.Millisecond, loki.Margin(loki.MinExpiry))
	require.Equal(t, 1500*time.Millisecond, loki.Margin(30*time.Second))
}

func TestLeaseIsRenewedAtAThirdOfTheExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		start := time.Now()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			time.Sleep(65 * time.Second)
			return ctx.Err()
		}))
		var at []time.Duration
		for _, call := range r.primary.Calls(lokitest.OpExtend) {
			at = append(at, call.Start.Sub(start))
		}
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second, 50 * time.Second, 60 * time.Second}, at)
	})
}

func TestLeaseWithoutRenewalEndsAtItsExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, loki.WithoutRenewal())
		require.ErrorIs(t, err, loki.ErrExpired)
		require.Equal(t, 30*time.Second-loki.Margin(30*time.Second), time.Since(start))
		require.Empty(t, r.primary.Calls(lokitest.OpExtend))
		r.requireEmpty()
	})
}

func TestLeaseSurvivesFailuresWithinItsWindow(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			r.primary.fail(errDown, lokitest.OpExtend)
			time.Sleep(27 * time.Second)
			r.primary.heal()
			time.Sleep(time.Minute)
			return ctx.Err()
		}))
		require.Len(t, r.events(loki.KindRenewFailed), 1, "one outage, one event")
		require.Less(t, len(r.primary.Calls(lokitest.OpExtend)), 30, "a dead store is not flooded")
	})
}

// The validity is ended by a timer of its own, also while a renewal hangs in a handler that ignores its context.
func TestLeaseEndsWhileARenewalHangs(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		until := make(chan struct{})
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{Until: until, IgnoreCtx: true}})
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.Equal(t, 3*time.Second-loki.Margin(3*time.Second), time.Since(start))
		require.ErrorIs(t, err, loki.ErrExpired)
		close(until)
		time.Sleep(10 * time.Second)
		r.requireEmpty()
	})
}

func TestLeaseIsCountedFromBeforeTheRequest(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.nextCall(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 400 * time.Millisecond}})
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 2*time.Second, func(ctx context.Context) error {
			require.Equal(t, 400*time.Millisecond, time.Since(start))
			<-ctx.Done()
			return nil
		}, loki.WithoutRenewal())
		require.ErrorIs(t, err, loki.ErrExpired)
		require.Equal(t, 1900*time.Millisecond, time.Since(start))
	})
}

// Nothing takes a lock again behind fn's back.
func TestLeaseThatIsNotHeldIsLostAtTheNextRenewal(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
			token := r.primary.Calls(lokitest.OpLock)[0].Claim.Token
			require.NoError(t, r.primary.mem.Release(t.Context(), loki.Claim{Key: "job", Token: token}))
			<-ctx.Done()
			require.Empty(t, r.primary.mem.HeldKeys())
			return nil
		})
		require.ErrorIs(t, err, loki.ErrNotHeld)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestLeaseFromAcquire(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		ls, err := l.Acquire(t.Context(), 30*time.Second, loki.WithResource("a/b%c"))
		require.NoError(t, err)
		require.Equal(t, "job/a%2Fb%25c", ls.Key())
		require.Positive(t, ls.Fence())
		got, ok := loki.LeaseFromContext(ls.Context())
		require.True(t, ok)
		require.Same(t, ls, got)

		time.Sleep(2 * time.Minute)
		require.NoError(t, ls.Context().Err())
		r.requireBusy(other, loki.WithResource("a/b%c"))
		require.NoError(t, ls.Release(t.Context()))
		require.NoError(t, ls.Release(t.Context()), "a second release does nothing")
		require.ErrorIs(t, context.Cause(ls.Context()), context.Canceled)
		r.requireRan(other, loki.WithResource("a/b%c"))
		r.requireEmpty()
	})
}

func TestLeaseFromAcquireSaysThatItWasLost(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		ls, err := l.Acquire(t.Context(), 30*time.Second)
		require.NoError(t, err)
		r.primary.fail(errDown)
		r.secondary.fail(errDown)
		<-ls.Context().Done()
		require.ErrorIs(t, context.Cause(ls.Context()), loki.ErrLockLost)
		for range 2 {
			require.ErrorIs(t, ls.Release(t.Context()), loki.ErrExpired)
		}
	})
}

func TestLeaseOfAClosureIsReleasedByTheClosureOnly(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
			ls, ok := loki.LeaseFromContext(ctx)
			require.True(t, ok)
			require.ErrorContains(t, ls.Release(ctx), "belongs to a closure")
			require.NotEmpty(t, r.primary.mem.HeldKeys())
			return ctx.Err()
		}))
		_, ok := loki.LeaseFromContext(t.Context())
		require.False(t, ok)
	})
}

// twoMethods hides every capability of a store.
type twoMethods struct{ store *testStore }

func (h twoMethods) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	return h.store.Lock(ctx, c)
}
func (h twoMethods) Release(ctx context.Context, c loki.Claim) error { return h.store.Release(ctx, c) }

// unsupported has every capability and none.
type unsupported struct{ twoMethods }

func (unsupported) Grant(context.Context, loki.Claim) (loki.Grant, error) {
	return loki.Grant{}, errors.ErrUnsupported
}
func (unsupported) Extend(context.Context, loki.Claim) (bool, error) {
	return false, errors.ErrUnsupported
}

func TestHandlerWithoutCapabilities(t *testing.T) {
	for name, wrap := range map[string]func(*testStore) loki.LockHandler{
		"two methods": func(s *testStore) loki.LockHandler { return twoMethods{s} },
		"unsupported": func(s *testStore) loki.LockHandler { return unsupported{twoMethods{s}} },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				plain := func(c *loki.Config) { c.Primary, c.Secondary = wrap(r.primary), wrap(r.secondary) }
				a, b := r.locker(plain), r.locker(plain)
				require.NoError(t, a.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					ls, _ := loki.LeaseFromContext(ctx)
					require.Zero(t, ls.Fence())
					time.Sleep(2 * time.Minute)
					r.requireBusy(b)
					r.primary.fail(errDown)
					time.Sleep(2 * time.Minute)
					r.requireBusy(b)
					return ctx.Err()
				}))
				r.primary.heal()
				time.Sleep(time.Minute)
				r.requireEmpty()
				r.requireRan(b, loki.WithMinHold(time.Second))
				r.requireBusy(a)
				time.Sleep(2 * time.Second)
				r.requireEmpty()
			})
		})
	}
}

// leaseFaults are what can come of a renewal, by number.
var leaseFaults = []lokitest.Fault{
	{}, // ok
	{Err: errDown},
	{Err: errDown, LostReply: true},
	{Refuse: true}, // "not held", although it is
	{Before: lokitest.Pause{For: 700 * time.Millisecond, IgnoreCtx: true}}, // hangs, and takes effect late
	{After: lokitest.Pause{For: 700 * time.Millisecond, IgnoreCtx: true}},
	{Before: lokitest.Pause{For: 70 * time.Millisecond}},
}

// runLeaseSchedule runs a closure of two and a half seconds on a lease of one, whose renewals meet with the faults of
// the schedule. From then on either all is well, or the store is gone for good if the first bit of the last one is set.
func runLeaseSchedule(t *testing.T, schedule []byte) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(alone), r.locker(alone)
		for _, step := range schedule {
			r.primary.faults.Next(lokitest.OpExtend, leaseFaults[int(step)%len(leaseFaults)])
		}
		if n := len(schedule); n > 0 && schedule[n-1]&1 == 1 {
			r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Err: errDown})
		}
		err := l.ExecuteWithinLock(t.Context(), time.Second, func(ctx context.Context) error {
			for tick := range 250 {
				// The other way round, a store that holds what is lost, there can be: Refuse is a lie.
				if ctx.Err() == nil && len(r.primary.mem.HeldKeys()) == 0 {
					t.Errorf("at %d ms fn believes in a lock that the store does not hold", tick*10)
				}
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(10 * time.Millisecond):
				}
			}
			return nil
		})
		if err != nil {
			require.ErrorIs(t, err, loki.ErrLockLost)
		}
		require.LessOrEqual(t, len(r.primary.Calls(lokitest.OpExtend)), 60, "the store is flooded")
		time.Sleep(2 * time.Second)
		r.requireEmpty()
		r.requireRan(other)
	})
}

func TestLeaseIsNeverTrustedLongerThanTheStoreHolds(t *testing.T) {
	for a := range leaseFaults {
		for b := range leaseFaults {
			for c := range leaseFaults {
				runLeaseSchedule(t, []byte{byte(a), byte(b), byte(c)})
			}
		}
	}
}

func FuzzLease(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 1, 1, 3})
	f.Add([]byte{4, 5, 4, 5, 2, 2, 2, 1})
	f.Fuzz(func(t *testing.T, schedule []byte) {
		runLeaseSchedule(t, schedule[:min(len(schedule), 20)])
	})
}

func TestNothingIsLeftOfTenThousandRuns(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		store := memhandler.New()
		l, err := loki.New(loki.Config{ServiceKey: "job", Primary: store, Secondary: memhandler.New()})
		require.NoError(t, err)
		run := func() { r.requireRan(l) }
		for range 100 {
			run()
		}
		synctest.Wait()
		before := runtime.NumGoroutine()
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		objects := mem.HeapObjects
		for range 10_000 {
			run()
		}
		synctest.Wait()
		require.Less(t, runtime.NumGoroutine(), before+100, "other tests may have some, but not one for each run")
		runtime.GC()
		runtime.ReadMemStats(&mem)
		require.Less(t, int64(mem.HeapObjects)-int64(objects), int64(5000), "something is kept for each run")
		require.Empty(t, store.HeldKeys())
		require.NoError(t, l.Close(t.Context()))
	})
}

// Every attempt fails, and the last one was given hardly any time: the error keeps what the others met.
func TestLeaseThatExpiresKeepsTheTellingError(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			r.primary.faults.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
				if time.Since(start) < 1500*time.Millisecond {
					return lokitest.Fault{Err: errDown}
				}
				return lokitest.Fault{Before: lokitest.Pause{For: time.Minute}}
			})
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, loki.ErrExpired)
		require.ErrorContains(t, err, errDown.Error())
		r.primary.heal()
	})
}

// In sync mode, with a secondary that issues no fencing tokens. The primary restarts empty while the first lease waits for the
// secondary, so that its own tokens do not tell who is the later holder.
func TestLease_FenceIsTheAuthoritativeStores(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		change := func(c *loki.Config) { c.Mirror, c.Secondary = loki.MirrorSync, twoMethods{r.secondary} }
		a, b := r.locker(change), r.locker(change)
		fence := func(l *loki.Locker) (f int64, err error) {
			err = l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
				ls, _ := loki.LeaseFromContext(ctx)
				f = ls.Fence()
				return nil
			})
			return f, err
		}
		slow := lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Second}}
		r.secondary.nextCall(lokitest.OpLock, slow)
		var later int64
		done := make(chan error, 1)
		go func() {
			var err error
			later, err = fence(a)
			done <- err
		}()
		time.Sleep(time.Second)
		r.primary.forget(t)
		earlier, err := fence(b)
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.GreaterOrEqual(t, later, earlier, "the later holder's fencing token is not smaller")
		require.Zero(t, later, "the primary's is no fencing token of a lease that relies on the secondary")
	})
}
