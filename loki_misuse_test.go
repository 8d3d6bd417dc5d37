package loki_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/stretchr/testify/require"
)

// Whatever a call returns, its outcome is its own, not an earlier call's.
func TestOutcome_OfARefusedCallIsEmpty(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		fn := func(context.Context) error { return nil }
		for name, call := range map[string]func(loki.Option) error{
			"nil fn": func(o loki.Option) error { return l.ExecuteWithinLock(t.Context(), time.Minute, nil, o) },
			"nil Locker": func(o loki.Option) error {
				return (*loki.Locker)(nil).ExecuteWithinLock(t.Context(), time.Minute, fn, o)
			},
			"nil fn with a result": func(o loki.Option) error {
				_, err := loki.Execute[int](t.Context(), l, time.Minute, nil, o)
				return err
			},
			"expiry": func(o loki.Option) error { return l.ExecuteWithinLock(t.Context(), 0, fn, o) },
		} {
			out := loki.Outcome{Ran: true, Key: "job", Store: loki.Primary, Fence: 7}
			require.Error(t, call(loki.WithOutcome(&out)), name)
			require.Equal(t, loki.Outcome{}, out, name)
		}
	})
}

// A copy, or a zero value, gets a sentence.
func TestZeroValuesAndCopiesAreRefused(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		copied := loki.Copy(l)
		for name, l := range map[string]*loki.Locker{"nil": nil, "zero": {}, "copy": copied} {
			require.ErrorContains(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), "was not made by Build or New, or is a copy", name)
			require.ErrorContains(t, l.Close(t.Context()), "was not made by Build or New, or is a copy", name)
		}
		for _, ls := range []*loki.Lease{nil, {}} {
			require.ErrorContains(t, ls.Release(t.Context()), "was not made by Acquire")
		}
	})
}

// An observer that ends its goroutine, as a failed assertion in a test does, misses that event alone.
func TestObserver_EndsItsGoroutine(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		n := 0
		l := r.locker(alone, func(c *loki.Config) {
			c.Observer = func(context.Context, loki.Event) {
				switch n++; n {
				case 1:
					time.Sleep(time.Second) // meanwhile others come
				case 2:
					runtime.Goexit()
				}
			}
		})
		for range 4 {
			r.requireRan(l)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, 8, n, "two events a run")
	})
}
