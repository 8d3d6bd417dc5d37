package loki_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

// errDown is what a client gets from a server that is not there.
var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// testStore is an in-process store that can be made to fail, and that remembers what it was asked.
type testStore struct {
	*lokitest.Recorder
	faults *lokitest.Faults
	mem    *memhandler.Handler
}

func newTestStore() *testStore {
	mem := memhandler.New()
	faults := lokitest.NewFaults(mem)
	return &testStore{Recorder: lokitest.NewRecorder(faults), faults: faults, mem: mem}
}

var everyOp = []lokitest.Op{lokitest.OpLock, lokitest.OpExtend, lokitest.OpRelease}

// fail makes every call fail with err, or hang if it is nil, until heal.
func (s *testStore) fail(err error, ops ...lokitest.Op) {
	if len(ops) == 0 {
		ops = everyOp
	}
	for _, op := range ops {
		s.faults.Set(op, lokitest.Fault{Err: err})
	}
}

// hang makes every call hang until its ctx ends.
func (s *testStore) hang(ops ...lokitest.Op) {
	if len(ops) == 0 {
		ops = everyOp
	}
	for _, op := range ops {
		s.faults.Set(op, lokitest.Fault{Before: lokitest.Pause{For: 1 << 62}})
	}
}

// nextCall has both attempts of the next call of op meet with fault, which has to last for a quarter of the call's time.
func (s *testStore) nextCall(op lokitest.Op, fault lokitest.Fault) { s.faults.Next(op, fault, fault) }

// firstAttempts are the calls that were recorded, without the second attempts.
func (s *testStore) firstAttempts(ops ...lokitest.Op) []lokitest.Call {
	return slices.DeleteFunc(s.Calls(ops...), func(c lokitest.Call) bool { return c.Claim.Repeated })
}

func (s *testStore) heal() { s.faults.Clear() }

func (s *testStore) held(t *testing.T, key string) loki.Holder {
	t.Helper()
	h, held, err := s.mem.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.True(t, held, "nobody holds %q", key)
	return h
}

// eventLog keeps events for a test.
type eventLog struct {
	mu     sync.Mutex
	events []loki.Event
}

func (l *eventLog) observe(_ context.Context, e loki.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *eventLog) of(kind loki.EventKind) []loki.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.events), func(e loki.Event) bool { return e.Kind != kind })
}

// rig is two stores and the Lockers on them, as instances on several machines would be. It runs in a bubble, in which
// time passes only while everybody waits.
type rig struct {
	t                  *testing.T
	primary, secondary *testStore
	log                *eventLog
	lockers            []*loki.Locker
}

// longest is longer than any claim of these tests lives.
const longest = 3 * time.Hour

// oneRig has one rig at a time, on one processor: with more, the race detector crashes where many timers of a bubble are due
// (golang/go#78156).
var oneRig sync.Mutex

func inRig(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	oneRig.Lock()
	defer oneRig.Unlock()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, primary: newTestStore(), secondary: newTestStore(), log: &eventLog{}}
		test(t, r)
		// Everything that goes on in the background has an end, a bubble waits for it, and nothing is left then.
		r.primary.heal()
		r.secondary.heal()
		for _, l := range r.lockers {
			require.NoError(t, l.Close(t.Context()))
		}
		time.Sleep(longest)
		r.requireEmpty()
	})
}

// locker is an instance on both stores.
func (r *rig) locker(change ...func(*loki.Config)) *loki.Locker {
	r.t.Helper()
	c := loki.Config{ServiceKey: "job", Primary: r.primary, Secondary: r.secondary, Observer: r.log.observe}
	for _, f := range change {
		f(&c)
	}
	l, err := loki.New(c)
	require.NoError(r.t, err)
	r.lockers = append(r.lockers, l)
	return l
}

func alone(c *loki.Config)  { c.Secondary = nil }
func inSync(c *loki.Config) { c.Mirror = loki.MirrorSync }

// events are those of a kind that have been told so far.
func (r *rig) events(kind loki.EventKind) []loki.Event {
	synctest.Wait()
	return r.log.of(kind)
}

// primaryIsBack heals the primary and waits until every breaker has noticed.
func (r *rig) primaryIsBack() {
	r.primary.heal()
	time.Sleep(2 * loki.BreakerMaxPause)
}

// requireEmpty waits, in the bubble's time, until no store holds anything.
func (r *rig) requireEmpty() {
	r.t.Helper()
	synctest.Wait()
	require.Empty(r.t, r.primary.mem.HeldKeys(), "primary")
	require.Empty(r.t, r.secondary.mem.HeldKeys(), "secondary")
}

// requireRan runs a closure that has to run, and returns its outcome.
func (r *rig) requireRan(l *loki.Locker, opts ...loki.Option) loki.Outcome {
	r.t.Helper()
	var out loki.Outcome
	ran := 0
	err := l.ExecuteWithinLock(r.t.Context(), 30*time.Second, func(context.Context) error { ran++; return nil }, append(opts, loki.WithOutcome(&out))...)
	require.NoError(r.t, err)
	require.Equal(r.t, 1, ran)
	require.True(r.t, out.Ran)
	return out
}

// requireBusy runs a closure that must be skipped.
func (r *rig) requireBusy(l *loki.Locker, opts ...loki.Option) error {
	r.t.Helper()
	err := l.ExecuteWithinLock(r.t.Context(), 30*time.Second, mustNotRun(r.t), opts...)
	require.ErrorIs(r.t, err, loki.ErrBusy)
	return err
}

func mustNotRun(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("fn ran")
		return nil
	}
}

var errFn = errors.New("fn failed")
