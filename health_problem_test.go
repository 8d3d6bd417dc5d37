package loki_test

import (
	"context"
	"crypto/sha1" //nolint:gosec // what Redis names scripts by
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// What the rollback meets after a refused acquisition is no second problem, whatever its text: nothing is held.
func TestRefusedAcquisitionIsReportedOnce(t *testing.T) {
	for name, mode := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		for ms, slow := range map[string]lokitest.Pause{"at once": {}, "after a while": {For: 200 * time.Millisecond}} {
			t.Run(name+" "+ms, func(t *testing.T) {
				inRig(t, func(t *testing.T, r *rig) {
					l := r.locker(mode)
					r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: slow, Err: errors.New("cannot execute INSERT in a read-only transaction")})
					r.primary.faults.Set(lokitest.OpRelease, lokitest.Fault{Before: slow, Err: errors.New("cannot execute DELETE in a read-only transaction")})
					for range 20 {
						require.Error(t, r.try(l))
						time.Sleep(time.Second)
					}
					r.requireReported("ERROR refused primary")
					require.Equal(t, loki.OpLock, r.events(loki.KindRefused)[0].Op)
				})
			})
		}
	}
}

func TestOneCauseIsReportedOnce(t *testing.T) {
	denied := errors.New("permission denied for table loki_locks (SQLSTATE 42501)")
	for name, refuse := range map[string]func(n int, op lokitest.Op, c loki.Claim) error{
		"with the id of a request": func(n int, _ lokitest.Op, _ loki.Claim) error {
			return fmt.Errorf("AccessDenied (request id %x)", n*7_919_000_003)
		},
		"with a UUID": func(n int, _ lokitest.Op, _ loki.Claim) error {
			return fmt.Errorf("AccessDenied (request %x-abcd-beef)", n)
		},
		"with the hash of a script": func(n int, op lokitest.Op, _ loki.Claim) error {
			return fmt.Errorf("NOPERM in script %x", sha1.Sum([]byte(string(op)+fmt.Sprint(n)))) //nolint:gosec // see above
		},
		"with the operation and the key": func(_ int, op lokitest.Op, c loki.Claim) error {
			return &loki.HandlerError{Store: "postgreshandler", Op: loki.Op(op), Key: c.Key, Err: denied}
		},
		"with the key, quoted twice": func(_ int, _ lokitest.Op, c loki.Claim) error {
			return fmt.Errorf("%q", fmt.Sprintf("of %q: %v", c.Key, denied))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				n := 0
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 10*time.Second, func(context.Context) error {
					r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
						n++
						return lokitest.Fault{Err: refuse(n, op, c)}
					})
					time.Sleep(4 * time.Second) // the renewal is refused as well, and then the release
					return nil
				}))
				for _, resource := range []string{"x", `C:\x`, `C:\"y"`, "Łódź 7", "a\u00a0b"} {
					for range 10 {
						require.Error(t, r.try(l, loki.WithResource(resource)))
						time.Sleep(time.Second)
					}
				}
				r.requireReported("ERROR refused primary")
			})
		})
	}
}

func TestDownNamesTheCallThatFailed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Decide(func(op lokitest.Op, _ loki.Claim) lokitest.Fault {
			return lokitest.Fault{Err: loki.Unavailable(fmt.Errorf("%s failed", op))}
		})
		for range 3 {
			require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
			time.Sleep(time.Second)
		}
		r.requireReported("ERROR down primary")
		e := r.events(loki.KindDown)[0]
		require.Equal(t, loki.OpLock, e.Op)
		require.EqualError(t, e.Err, `primary: lock of "job": lock failed`)
	})
}

// Too many callers at once: a call may time out while others, that were sent after it, are answered.
func TestCloseReportsNoFailureThatALaterCallContradicted(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		held, err := l.Acquire(t.Context(), time.Minute, loki.WithResource("a"))
		require.NoError(t, err)
		r.primary.nextCall(lokitest.OpRelease, lokitest.Fault{Before: lokitest.Pause{For: time.Hour}})
		released := make(chan error)
		go func() { released <- held.Release(context.WithoutCancel(t.Context())) }()
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, r.try(l, loki.WithResource("b")))
		require.Error(t, <-released)
		require.NoError(t, l.Close(t.Context()))
		r.requireReported()
	})
}

// One shard of a cluster has no memory left: it releases, and answers probes. The other shards grant.
func TestHealthReportsAShardThatGrantsNothing(t *testing.T) {
	full := loki.Unavailable(errors.New("OOM command not allowed"))
	for name, attempts := range map[string]int{"one attempt at a time": 1, "two in a row": 2} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
					if op == lokitest.OpLock && strings.HasPrefix(c.Key, "job/full") {
						return lokitest.Fault{Err: full}
					}
					return lokitest.Fault{}
				})
				for range 300 {
					for range attempts {
						require.ErrorIs(t, r.try(l, loki.WithResource("full")), loki.ErrUnavailable)
						time.Sleep(100 * time.Millisecond)
					}
					require.NoError(t, r.try(l, loki.WithResource("fine")))
					time.Sleep(time.Second)
				}
				r.requireReported("ERROR down primary")
				r.primary.heal()
				require.NoError(t, r.try(l, loki.WithResource("full")))
				r.requireReported("ERROR down primary", "INFO up primary")
			})
		})
	}
}

// A job that runs once and exits has no second failure, and its rollback is answered: a store without memory carries that out.
func TestCloseReportsAFailureThatItsRollbackDoesNotContradict(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: time.Millisecond}, Err: loki.Unavailable(errors.New("OOM command not allowed"))})
		r.requireRan(l)
		require.NoError(t, l.Close(t.Context()))
		require.NotEmpty(t, r.primary.Calls(lokitest.OpRelease))
		r.requireReported("WARN down primary")
	})
}
