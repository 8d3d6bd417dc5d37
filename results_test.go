package loki_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// The table of what ExecuteWithinLock returns, a test for each row.

func TestResult_Nil(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		out := r.requireRan(l)
		require.Equal(t, "job", out.Key)
		require.Equal(t, loki.Primary, out.Store)
		require.Positive(t, out.Fence)
		r.requireEmpty()
	})
}

func TestResult_Busy(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		require.NoError(t, a.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			var out loki.Outcome
			err := r.requireBusy(b, loki.WithOutcome(&out))
			require.Equal(t, loki.Outcome{Key: "job", Waited: out.Waited}, out)
			var busy *loki.BusyError
			require.ErrorAs(t, err, &busy)
			require.Equal(t, r.primary.held(t, "job").ID, busy.Holder.ID)
			require.ErrorContains(t, err, `"job"`)
			require.ErrorContains(t, err, busy.Holder.ID)
			require.NotErrorIs(t, err, loki.ErrUnavailable)
			require.NoError(t, loki.IgnoreBusy(err))
			return nil
		}))
		for _, call := range r.secondary.Calls() {
			require.Equal(t, r.primary.Calls(lokitest.OpLock)[0].Claim.Token, call.Claim.Token, "the secondary was asked although the primary said busy")
		}
	})
}

func TestResult_BusyAndContextWhenAWaitIsCutShort(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		a, b := r.locker(), r.locker()
		_, err := a.Acquire(t.Context(), time.Minute)
		require.NoError(t, err)

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errFn)
		defer cancel()
		err = b.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errFn)

		err = b.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(time.Second))
		require.ErrorIs(t, err, loki.ErrBusy)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
	})
}

func TestResult_Unavailable(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		r.secondary.fail(loki.Unavailable(errors.New("login timeout")))
		start := time.Now()
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.NotErrorIs(t, err, loki.ErrBusy)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.EqualError(t, err, `loki: lock "job" not acquired: no store available: primary: dial tcp: connection refused; secondary: login timeout`)

		err = l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), loki.WithWait(loki.UntilDone))
		require.ErrorIs(t, err, loki.ErrUnavailable, "it ends a wait at once")
		require.Zero(t, time.Since(start))
	})
}

func TestResult_UnavailableFindsEveryHandlerError(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		r.secondary.hang()
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the secondary's own time was up")
		require.Equal(t, []string{"primary", "secondary"}, handlersIn(err))
	})
}

// handlersIn lists the stores whose errors are joined in err.
func handlersIn(err error) (names []string) {
	if h, ok := err.(*loki.HandlerError); ok { //nolint:errorlint // this walks the tree itself
		return []string{string(h.Store)}
	}
	switch u := err.(type) { //nolint:errorlint // likewise
	case interface{ Unwrap() error }:
		return handlersIn(u.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range u.Unwrap() {
			names = append(names, handlersIn(err)...)
		}
	}
	return names
}

func TestResult_LockLost(t *testing.T) {
	reasons := map[string]struct {
		reason error
		lose   func(r *rig)
	}{
		"expired": {loki.ErrExpired, func(r *rig) { r.primary.fail(errDown); r.secondary.fail(errDown) }},
		"not held": {loki.ErrNotHeld, func(r *rig) {
			r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Refuse: true})
			r.secondary.fail(errDown)
		}},
	}
	for name, c := range reasons {
		returns := map[string]func(ctx context.Context) error{
			"nil":       func(context.Context) error { return nil },
			"its error": func(context.Context) error { return errFn },
			"the cause": context.Cause,
			"ctx.Err()": func(ctx context.Context) error { return ctx.Err() },
		}
		for returned, ret := range returns {
			t.Run(name+"/fn returns "+returned, func(t *testing.T) {
				inRig(t, func(t *testing.T, r *rig) {
					l := r.locker()
					var out loki.Outcome
					var cause error
					err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
						c.lose(r)
						<-ctx.Done()
						cause = context.Cause(ctx)
						return ret(ctx)
					}, loki.WithOutcome(&out))
					require.True(t, out.Ran)
					for _, got := range []error{err, cause} {
						require.ErrorIs(t, got, loki.ErrLockLost)
						require.ErrorIs(t, got, c.reason)
						for other := range reasons {
							if other != name {
								require.NotErrorIs(t, got, reasons[other].reason)
							}
						}
					}
					switch returned {
					case "nil", "the cause":
						require.Equal(t, cause, err, "nothing is said twice")
					case "its error":
						require.ErrorIs(t, err, errFn)
					}
					if errors.Is(c.reason, loki.ErrExpired) {
						var op *net.OpError
						require.ErrorAs(t, err, &op, "the last error of a store is joined")
					}
					require.Len(t, r.events(loki.KindLost), 1)
				})
			})
		}
	}
}

func TestResult_MistakeOfThePrimary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		noPermission := errors.New("NOPERM this user has no permissions")
		r.primary.fail(noPermission, lokitest.OpLock)
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, noPermission)
		var handlerErr *loki.HandlerError
		require.ErrorAs(t, err, &handlerErr)
		require.Equal(t, loki.HandlerError{Store: loki.Primary, Op: loki.OpLock, Key: "job", Err: noPermission}, *handlerErr)
		require.EqualError(t, err, `loki: lock "job" not acquired: the primary refused with a permanent error: primary: NOPERM this user has no permissions`)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
		require.NotErrorIs(t, err, loki.ErrBusy)
		require.Empty(t, r.secondary.Calls(), "a mistake is no reason to fall back")
		require.Len(t, r.events(loki.KindRefused), 1)
	})
}

func TestResult_MistakeOfTheSecondary(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		noTable := errors.New("invalid object name")
		r.primary.fail(errDown)
		r.secondary.fail(noTable)
		err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
		require.ErrorIs(t, err, noTable)
		require.NotErrorIs(t, err, loki.ErrUnavailable)
		var op *net.OpError
		require.ErrorAs(t, err, &op, "the other store's error is joined")
		require.EqualError(t, err, `loki: lock "job" not acquired: the primary is unavailable, and the secondary refused with a permanent error: primary: dial tcp: connection refused; secondary: invalid object name`)
		require.Equal(t, []string{"primary", "secondary"}, handlersIn(err))
	})
}

func TestResult_ClosedAndArguments(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		run := mustNotRun(t)
		long := make([]byte, 400)
		for i := range long {
			long[i] = 'x'
		}
		for want, call := range map[string]func() error{
			"too short":           func() error { return l.ExecuteWithinLock(t.Context(), 0, run) },
			"-1ns is too short":   func() error { return l.ExecuteWithinLock(t.Context(), -1, run) },
			"19ms is too short":   func() error { return l.ExecuteWithinLock(t.Context(), 19*time.Millisecond, run) },
			"too long: it must":   func() error { return l.ExecuteWithinLock(t.Context(), loki.MaxExpiry+1, run) },
			"fn is nil":           func() error { return l.ExecuteWithinLock(t.Context(), time.Second, nil) },
			"context is nil":      func() error { return l.ExecuteWithinLock(nil, time.Second, run) }, //nolint:staticcheck // the mistake
			"option 1 is nil":     func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, nil) },
			"resource is empty":   func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithResource("")) },
			"begins or ends with": func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithResource("a ")) },
			"invisible character": func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithResource("a\x00b")) },
			"not valid UTF-8":     func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithResource("\xff")) },
			"404 UTF-16 units": func() error {
				return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithResource(string(long)))
			},
			"minimum hold of -1ns": func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithMinHold(-1)) },
			"got nil":              func() error { return l.ExecuteWithinLock(t.Context(), time.Second, run, loki.WithOutcome(nil)) },
			"made by Build": func() error {
				var none *loki.Locker
				return none.ExecuteWithinLock(t.Context(), time.Second, run)
			},
		} {
			err := call()
			require.ErrorContains(t, err, want)
			var handlerErr *loki.HandlerError
			require.NotErrorAs(t, err, &handlerErr)
		}
		require.NoError(t, l.Close(t.Context()))
		require.ErrorIs(t, l.ExecuteWithinLock(t.Context(), time.Minute, run), loki.ErrClosed)
		_, err := l.Acquire(t.Context(), time.Minute)
		require.ErrorIs(t, err, loki.ErrClosed)
		require.Empty(t, r.primary.Calls())
		require.Empty(t, r.secondary.Calls())
	})
}

func TestResult_ContextEnded(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker()
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errFn)
			err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errFn)
			require.NotErrorIs(t, err, loki.ErrUnavailable)
			require.Empty(t, r.primary.Calls())
			require.Empty(t, r.secondary.Calls())
		})
	})
	for _, ignoresCtx := range []bool{false, true} {
		t.Run("while the primary is asked", func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker()
				r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 200 * time.Millisecond, IgnoreCtx: ignoresCtx}})
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(50*time.Millisecond, func() { cancel(errFn) })
				start := time.Now()
				err := l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t))
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, errFn)
				require.Equal(t, 50*time.Millisecond, time.Since(start), "the end of ctx is honoured at once")
				require.Empty(t, r.secondary.Calls(), "no fall-back for a caller that has left")
				time.Sleep(time.Second)
				r.requireEmpty()
			})
		})
	}
}

func TestResult_FnsOwnError(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		for _, want := range []error{errFn, loki.ErrBusy, context.Canceled} {
			var out loki.Outcome
			err := l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { return want }, loki.WithOutcome(&out))
			require.Equal(t, want, err, "untouched")
			require.True(t, out.Ran)
		}
		r.requireEmpty()
	})
}

func TestResult_ReleaseFailureIsAnEvent(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpRelease, lokitest.Fault{Err: errDown})
		r.requireRan(l)
		require.Len(t, r.primary.mem.HeldKeys(), 1)
		time.Sleep(100 * time.Millisecond)
		r.requireEmpty()
		require.Len(t, r.events(loki.KindReleaseFailed), 1)
		require.Len(t, r.events(loki.KindReleased), 1)
	})
}

func TestResult_ContextEndsWhileFnRuns(t *testing.T) {
	for _, c := range []struct {
		name    string
		runs    time.Duration
		isLost  bool
		expires time.Duration
	}{
		{"fn returns within what is left", time.Second, false, 10 * time.Second},
		{"fn returns after it", 20 * time.Second, true, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker()
				ctx, cancel := context.WithCancelCause(t.Context())
				err := l.ExecuteWithinLock(ctx, c.expires, func(fnCtx context.Context) error {
					cancel(errFn)
					<-fnCtx.Done()
					require.Equal(t, errFn, context.Cause(fnCtx))
					time.Sleep(c.runs)
					return nil
				})
				if c.isLost {
					require.ErrorIs(t, err, loki.ErrLockLost)
					require.ErrorIs(t, err, loki.ErrExpired)
				} else {
					require.NoError(t, err)
				}
				require.Empty(t, r.primary.Calls(lokitest.OpExtend), "renewed for a caller that has left")
				r.requireEmpty()
			})
		})
	}
}

func TestPanicAndGoexitGiveTheLockBack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l, other := r.locker(), r.locker()
		type custom struct{ s string }
		require.PanicsWithValue(t, custom{"boom"}, func() {
			_ = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { panic(custom{"boom"}) })
		})
		r.requireEmpty()
		r.requireRan(other)

		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		r.requireEmpty()
		r.requireRan(other)
	})
}

func TestExecuteReturnsTheResult(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		n, err := loki.Execute(t.Context(), l, time.Minute, func(context.Context) (int, error) { return 42, errFn })
		require.Equal(t, 42, n)
		require.Equal(t, errFn, err)
		_, err = loki.Execute[int](t.Context(), l, time.Minute, nil)
		require.ErrorContains(t, err, "fn is nil")
	})
}
