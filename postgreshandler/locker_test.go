package postgreshandler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

// instance is a Locker as one process of a fleet has it.
func instance(t *testing.T, primary, secondary loki.LockHandler, change ...func(*loki.Builder)) *loki.Locker {
	t.Helper()
	b := loki.NewBuilder().SetServiceKey("job").SetPrimaryLockHandler(primary).
		SetPrimaryTimeout(10 * time.Second).SetSecondaryTimeout(10 * time.Second)
	if secondary != nil {
		b.SetSecondaryLockHandler(secondary).SetMirror(loki.MirrorSync)
	}
	for _, f := range change {
		f(b)
	}
	l, err := b.Build()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.WithoutCancel(t.Context()))) })
	return l
}

// hold runs until the returned function is called.
func hold(t *testing.T, l *loki.Locker, expiry time.Duration, opts ...loki.Option) (end func() error) {
	t.Helper()
	running, ended, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- l.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
			close(running)
			select {
			case <-ended:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}, opts...)
	}()
	select {
	case <-running:
	case err := <-result:
		t.Fatalf("it did not run: %v", err)
	}
	return func() error {
		close(ended)
		return <-result
	}
}

func nothing(context.Context) error { return nil }

func TestLockerWithPostgresAsPrimary(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := instance(t, s.Handler, nil), instance(t, s.open(t).Handler, nil)
	end := hold(t, a, 300*time.Millisecond)
	err := b.ExecuteWithinLock(t.Context(), time.Minute, nothing)
	require.ErrorIs(t, err, loki.ErrBusy)
	var busy *loki.BusyError
	require.ErrorAs(t, err, &busy)
	require.NotEmpty(t, busy.Holder.ID)
	// Longer than its expiry: it is renewed.
	require.Eventually(t, func() bool { return time.Since(busy.Holder.Since) > time.Second }, 10*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing), loki.ErrBusy)
	require.NoError(t, end())
	require.NoError(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing))
	require.Zero(t, s.Count(t))
}

// Waiters are woken by the release, in processes that have a pool of one each.
func TestLockerWaitsByNotification(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	end := hold(t, instance(t, s.Handler, nil), time.Minute)
	var wg sync.WaitGroup
	const waiters = 3
	for range waiters {
		one := s.open(t)
		one.db.SetMaxOpenConns(1)
		l := instance(t, one.Handler, nil)
		wg.Go(func() {
			if err := l.ExecuteWithinLock(t.Context(), time.Minute, nothing, loki.WithWait(30*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return s.ears(t) == waiters }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, end())
	wg.Wait()
	require.Eventually(t, func() bool { return s.ears(t) == 0 && s.Count(t) == 0 }, 10*time.Second, 5*time.Millisecond)
}

func TestLockerWithPostgresAsSecondary(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	primary := lokitest.NewFaults(memhandler.New())
	down := func() {
		for _, op := range []lokitest.Op{lokitest.OpLock, lokitest.OpExtend, lokitest.OpRelease, lokitest.OpNotify} {
			primary.Set(op, lokitest.Fault{Err: loki.Unavailable(errors.New("the primary is down"))})
		}
	}
	a, b := instance(t, primary, s.Handler), instance(t, primary, s.open(t).Handler)

	end := hold(t, a, time.Second)
	require.Equal(t, 1, s.Count(t), "what the primary has granted is mirrored")
	down()
	require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing), loki.ErrBusy, "the secondary knows")
	require.NoError(t, end())
	require.Zero(t, s.Count(t))

	var at loki.Outcome
	end = hold(t, a, time.Second)
	require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing), loki.ErrBusy)
	require.NoError(t, end())
	require.NoError(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing, loki.WithOutcome(&at)))
	require.Equal(t, "secondary", string(at.Store))
	require.Positive(t, at.Fence)
	require.Zero(t, s.Count(t))
}

// Fences grow whichever store grants, since what one has issued is a floor for the other.
func TestLockerFencesGrowAcrossStores(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	primary := lokitest.NewFaults(memhandler.New())
	l := instance(t, primary, s.Handler)
	var fences []int64
	for round := range 20 {
		if round%4 == 1 {
			primary.Next(lokitest.OpLock, lokitest.Fault{Err: loki.Unavailable(errors.New("down"))})
		}
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
			lease, ok := loki.LeaseFromContext(ctx)
			require.True(t, ok)
			fences = append(fences, lease.Fence())
			return nil
		}))
	}
	require.IsIncreasing(t, fences)
}

// A restart of the server in the middle of a run costs nothing as long as it is shorter than the lease.
func TestLockerKeepsItsLockOverARestart(t *testing.T) {
	server := doomedServer()
	s := newStoreOn(t, server)
	l := instance(t, s.Handler, nil, func(b *loki.Builder) { b.SetPrimaryTimeout(time.Second).SetSecondaryTimeout(time.Second) })
	end := hold(t, l, 20*time.Second)
	server.Kill()
	server.Restart(t)
	require.ErrorIs(t, instance(t, s.open(t).Handler, nil).ExecuteWithinLock(t.Context(), time.Minute, nothing), loki.ErrBusy)
	require.NoError(t, end())
	require.Zero(t, s.Count(t))
}

// An occurrence's record stays for as long as it is to be kept, and another instance finds it.
func TestLockerOccurrences(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a, b := instance(t, s.Handler, nil), instance(t, s.open(t).Handler, nil)
	for day := range 3 {
		once := loki.WithOccurrence(fmt.Sprint("2026-11-", day), time.Hour)
		require.NoError(t, a.ExecuteWithinLock(t.Context(), time.Minute, nothing, once))
		require.ErrorIs(t, b.ExecuteWithinLock(t.Context(), time.Minute, nothing, once), loki.ErrDone)
	}
	require.Equal(t, 3, s.Count(t))
}
