package loki_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// lose makes a store lose whatever it holds.
func (s *testStore) lose(t *testing.T, token string) {
	t.Helper()
	for _, key := range s.mem.HeldKeys() {
		require.NoError(t, s.mem.Release(t.Context(), loki.Claim{Key: key, Token: token, Quiet: true}))
	}
}

func (s *testStore) lastToken() string {
	c := s.Calls(lokitest.OpLock)
	return c[len(c)-1].Claim.Token
}

// A renewal that is under way when fn returns says that the primary does not hold the claim.
func TestLoss_RenewalUnderWayThatFindsNothingIsALoss(t *testing.T) {
	for _, slow := range []bool{false, true} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker(alone)
			err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
				r.primary.lose(t, r.primary.lastToken())
				if slow {
					r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{After: lokitest.Pause{For: 50 * time.Millisecond}})
					time.Sleep(time.Second + 10*time.Millisecond) // the renewal is under way
				}
				return nil
			})
			require.ErrorIs(t, err, loki.ErrLockLost, "slow=%v", slow)
		})
	}
}

func TestLoss_RenewalThatFindsNothingAfterTheContextEndedIsALoss(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := l.ExecuteWithinLock(ctx, 3*time.Second, func(ctx context.Context) error {
			r.primary.lose(t, r.primary.lastToken())
			r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{After: lokitest.Pause{For: 50 * time.Millisecond}})
			time.Sleep(time.Second + 10*time.Millisecond) // the renewal is under way
			cancel()
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		require.ErrorIs(t, err, loki.ErrLockLost)
	})
}

func TestLoss_SyncALostLockIsNotKeptForItsMinimumHold(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync)
		err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
			r.secondary.lose(t, r.secondary.lastToken())
			return nil
		}, loki.WithMinHold(time.Minute))
		require.ErrorIs(t, err, loki.ErrLockLost)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, r.primary.mem.HeldKeys())
		require.Empty(t, r.secondary.mem.HeldKeys())
	})
}

func TestLoss_AsyncALostLockIsNotKeptForItsMinimumHold(t *testing.T) {
	for _, forgetSecondary := range []bool{true, false} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker()
			err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error {
				synctest.Wait()
				r.primary.lose(t, r.primary.lastToken())
				if forgetSecondary {
					r.secondary.lose(t, r.secondary.lastToken())
				}
				r.secondary.faults.Set(lokitest.OpExtend, lokitest.Fault{After: lokitest.Pause{For: 50 * time.Millisecond}})
				r.secondary.faults.Set(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 50 * time.Millisecond}})
				return nil
			}, loki.WithMinHold(time.Minute))
			time.Sleep(time.Second)
			synctest.Wait()
			t.Log(err, r.primary.mem.HeldKeys(), r.secondary.mem.HeldKeys())
			if err != nil {
				require.ErrorIs(t, err, loki.ErrLockLost)
				require.Empty(t, r.primary.mem.HeldKeys())
				require.Empty(t, r.secondary.mem.HeldKeys())
			} else {
				require.False(t, forgetSecondary)
				require.NotEmpty(t, r.primary.mem.HeldKeys())
				require.NotEmpty(t, r.secondary.mem.HeldKeys())
			}
		})
	}
}

// Nobody waits for a primary that is down, at the end of a closure that the circuit breaker sent to the secondary.
func TestLoss_MinimumHoldDoesNotWaitForAPrimaryThatIsDown(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.hang()
		r.requireRan(l)
		start := time.Now()
		r.requireRan(l, loki.WithMinHold(10*time.Second))
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
}

// A renewal for which next to no time was left says nothing about the primary: its release is waited for.
func TestLoss_RenewalWithoutTimeIsNoSilence(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(inSync)
		slow := lokitest.Fault{Before: lokitest.Pause{For: 20 * time.Millisecond}}
		r.secondary.faults.Set(lokitest.OpExtend, slow)
		r.secondary.nextCall(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 2840 * time.Millisecond}})
		r.primary.faults.Set(lokitest.OpExtend, slow)
		r.primary.faults.Set(lokitest.OpRelease, slow)
		err := l.ExecuteWithinLock(t.Context(), 3*time.Second, func(ctx context.Context) error { // a lease of 10 ms
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, loki.ErrExpired)
		require.NotEmpty(t, r.primary.Calls(lokitest.OpExtend))
		require.NotEmpty(t, r.primary.Calls(lokitest.OpRelease), "not left to the background")
		require.Empty(t, r.primary.mem.HeldKeys())
	})
}

func TestLeaseLoss_ConflictIsReportedAlsoWhenTheClosureHasEnded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		_, err := r.secondary.mem.Lock(t.Context(), loki.Claim{Key: "job", Token: "foreign", Holder: "foreign", Expiry: time.Hour})
		require.NoError(t, err)
		l := r.locker()
		err = l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
			synctest.Wait() // it has been refused
			r.secondary.hang()
			return nil
		})
		require.ErrorIs(t, err, loki.ErrConflict)
		require.Len(t, r.events(loki.KindLost), 1)
		require.Len(t, r.events(loki.KindConflict), 1)
	})
}
