package loki_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// contended is a store in which rivals contend for each key until it has been asked so many times. Before that, the first
// answer names the previous holder, if there is one.
type contended struct {
	*memhandler.Handler
	previous loki.Holder
	left     atomic.Int64
	asked    atomic.Int64
}

func newContended(times int64) *contended {
	c := &contended{Handler: memhandler.New()}
	c.left.Store(times)
	return c
}

func (c *contended) Grant(ctx context.Context, claim loki.Claim) (loki.Grant, error) {
	if c.asked.Add(1) == 1 && c.previous.ID != "" {
		return loki.Grant{HeldBy: c.previous}, nil
	}
	if c.left.Add(-1) >= 0 {
		return loki.Grant{Contended: true}, nil
	}
	return c.Handler.Grant(ctx, claim)
}

func (c *contended) Lock(ctx context.Context, claim loki.Claim) (bool, error) {
	g, err := c.Grant(ctx, claim)
	return g.Held, err
}

const always = 1 << 40

func contendedLocker(t *testing.T, config loki.Config) *loki.Locker {
	t.Helper()
	config.ServiceKey = "job"
	l, err := loki.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(t.Context())) })
	return l
}

func TestContention_IsBusyAndDoesNotFallBack(t *testing.T) {
	for name, mirror := range map[string]loki.MirrorMode{"async": loki.MirrorAsync, "sync": loki.MirrorSync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secondary := newContended(0)
				l := contendedLocker(t, loki.Config{Primary: newContended(always), Secondary: secondary, Mirror: mirror})
				err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
				require.ErrorIs(t, err, loki.ErrBusy)
				require.NotErrorIs(t, err, loki.ErrUnavailable)
				require.EqualError(t, err, `loki: lock "job" is busy (several instances contend for it, and none of them has acquired it yet)`)
				require.Zero(t, secondary.asked.Load())
			})
		})
	}
}

// No message says that a rival has given up, so a waiter asks again by itself, and soon.
func TestContention_AWaitGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newContended(8)
		l := contendedLocker(t, loki.Config{Primary: primary})
		begun := time.Now()
		var out loki.Outcome
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithWait(time.Minute), loki.WithOutcome(&out)))
		require.True(t, out.Ran)
		require.Equal(t, int64(9), primary.asked.Load())
		require.Less(t, time.Since(begun), time.Second)
	})
}

func TestContention_OfASecondaryIsNoOtherHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conflicts atomic.Int64
		l := contendedLocker(t, loki.Config{Primary: memhandler.New(), Secondary: newContended(always), Observer: func(_ context.Context, e loki.Event) {
			if e.Kind == loki.KindConflict || e.Kind == loki.KindLost {
				conflicts.Add(1)
			}
		}})
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			time.Sleep(2 * time.Minute)
			return nil
		}))
		require.Zero(t, conflicts.Load())
	})
}

// A secondary that decides because the primary is down is contended for like any other store.
func TestContention_OfASecondaryThatDecidesIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestStore()
		r.fail(loki.Unavailable(context.DeadlineExceeded))
		l := contendedLocker(t, loki.Config{Primary: r.faults, Secondary: newContended(3)})
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return nil }, loki.WithWait(time.Minute)))
	})
}

// halfSent is a store of several servers: one got the request, and to another nothing was sent.
type halfSent struct{ *memhandler.Handler }

func (h halfSent) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if _, err := h.Handler.Grant(ctx, c); err != nil {
		return loki.Grant{}, err
	}
	return loki.Grant{}, loki.Unavailable(errors.Join(loki.NotSent(errors.New("the pool is full")), io.EOF))
}

func TestNotSent_OfOneServerIsNotThatOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := halfSent{memhandler.New()}
		l := contendedLocker(t, loki.Config{Primary: store})
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)), loki.ErrUnavailable)
		synctest.Wait()
		_, held, err := store.Inspect(t.Context(), "job")
		require.NoError(t, err)
		require.False(t, held, "what the one server has recorded is rolled back")
	})
}

func TestContended_SecondaryIsBusyInSyncMode(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync, func(c *loki.Config) { c.Secondary = newContended(always) })
		err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t))
		require.NotErrorIs(t, err, loki.ErrUnavailable, "no store has failed")
		require.ErrorIs(t, err, loki.ErrBusy)
	})
}

// The secondary names the previous holder, whose release is on its way, and is contended for when that has arrived.
func TestContended_AfterARefusalIsNoConflict(t *testing.T) {
	tests := map[string]func(*rig, *contended) *loki.Locker{
		"sync": func(r *rig, c *contended) *loki.Locker {
			return r.locker(inSync, func(config *loki.Config) { config.Secondary = c })
		},
		"async, of a suspect key": func(r *rig, c *contended) *loki.Locker {
			l := r.locker(func(config *loki.Config) { config.Secondary = c })
			r.primary.fail(errDown)
			c.left.Add(100)
			_ = l.ExecuteWithinLock(r.t.Context(), 30*time.Second, mustNotRun(r.t), loki.WithResource("other"))
			r.primaryIsBack()
			c.asked.Store(0)
			c.left.Store(1)
			return l
		},
	}
	for name, locker := range tests {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				c := newContended(1)
				l := locker(r, c)
				c.previous = loki.Holder{ID: "the one before", Left: 20 * time.Second}
				r.requireRan(l)
				require.Empty(t, r.events(loki.KindConflict))
				require.EqualValues(t, 3, c.asked.Load())
			})
		})
	}
}
