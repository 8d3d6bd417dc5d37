package loki_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

var (
	simSeed      = flag.Uint64("loki.seed", 0, "run the one schedule of this seed in each simulation")
	simSchedules = flag.Int("loki.schedules", 60, "how many schedules each simulation runs")
)

const (
	simExpiry = time.Second      // of every lock
	simLength = 30 * time.Second // how long faults go on

	// simDetected is how long an overlap under MirrorAsync may go on once every instance reaches the secondary: a
	// mirror write that was given to a link when it was broken has its expiry to come back, is due again after a third
	// of that, and is refused for the grace.
	simDetected = simExpiry + simExpiry/2 + loki.MirrorGrace
)

// simStore is a store that can lose what it knows.
type simStore struct {
	mu   sync.Mutex
	mem  *memhandler.Handler
	last loki.Claim // the claim it granted last
}

func newSimStore() *simStore { return &simStore{mem: memhandler.New()} }

func (s *simStore) now() *memhandler.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mem
}

func (s *simStore) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := s.Grant(ctx, c)
	return g.Held, err
}

func (s *simStore) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	g, err := s.now().Grant(ctx, c)
	if g.Held {
		s.mu.Lock()
		s.last = c
		s.mu.Unlock()
	}
	return g, err
}

func (s *simStore) Release(ctx context.Context, c loki.Claim) error { return s.now().Release(ctx, c) }
func (s *simStore) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	return s.now().Extend(ctx, c)
}

// restart empties it.
func (s *simStore) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem = memhandler.New()
}

// promote has it forget what it granted last, as a replica that missed that write.
func (s *simStore) promote(ctx context.Context) {
	s.mu.Lock()
	mem, last := s.mem, s.last
	s.mu.Unlock()
	_ = mem.Release(ctx, last)
}

// simFaults are the states a link between an instance and a store can be in.
var simFaults = []struct {
	name  string
	fault func(r *rand.Rand) lokitest.Fault
}{
	{"fine", func(*rand.Rand) lokitest.Fault { return lokitest.Fault{} }},
	{"cut", func(*rand.Rand) lokitest.Fault { return lokitest.Fault{Err: errDown} }},
	{"black hole", func(*rand.Rand) lokitest.Fault {
		return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
	}},
	{"loses replies", func(r *rand.Rand) lokitest.Fault {
		return lokitest.Fault{Err: errDown, LostReply: r.IntN(2) == 0}
	}},
	{"late", func(r *rand.Rand) lokitest.Fault { // takes effect when nobody waits for it any more
		return lokitest.Fault{Before: lokitest.Pause{For: time.Duration(r.IntN(1500)) * time.Millisecond, IgnoreCtx: true}}
	}},
	{"slow", func(r *rand.Rand) lokitest.Fault {
		return lokitest.Fault{Before: lokitest.Pause{For: time.Duration(r.IntN(100)) * time.Millisecond}, After: lokitest.Pause{For: time.Duration(r.IntN(100)) * time.Millisecond}}
	}},
	{"flaky", func(r *rand.Rand) lokitest.Fault {
		if r.IntN(3) > 0 {
			return lokitest.Fault{}
		}
		return lokitest.Fault{Err: errDown, LostReply: r.IntN(2) == 0}
	}},
}

// simulation is one schedule: three instances that run closures on one key, and faults.
type simulation struct {
	t                  *testing.T
	mode               string // "alone", "async" or "sync"
	forgets            bool   // the primary may lose what it knows
	primary, secondary *simStore
	links              []*simLink

	mu        sync.Mutex
	rand      *rand.Rand
	intervals []simInterval
	healthy   []simInterval // when every instance reached the secondary
	fineSince time.Duration // negative while one does not
	story     strings.Builder
	start     time.Time
}

// simInterval is one run of a closure.
type simInterval struct {
	who        int
	start, end time.Duration
	err        error
}

// simLink is one instance's way to one store.
type simLink struct {
	name   string
	faults *lokitest.Faults
	broken bool
}

func (s *simulation) intn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}

func (s *simulation) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(&s.story, "%8v  %s\n", time.Since(s.start), fmt.Sprintf(format, args...))
}

func (s *simulation) link(name string, store *simStore) loki.LockHandler {
	l := &simLink{name: name, faults: lokitest.NewFaults(store)}
	s.links = append(s.links, l)
	return l.faults
}

// run is the schedule.
func (s *simulation) run() {
	s.start = time.Now()
	var lockers []*loki.Locker
	for i := range 3 {
		c := loki.Config{ServiceKey: "job", Holder: fmt.Sprint("instance ", i), Primary: s.link(fmt.Sprint(i, " to the primary"), s.primary)}
		if s.mode != "alone" {
			c.Secondary = s.link(fmt.Sprint(i, " to the secondary"), s.secondary)
		}
		if s.mode == "sync" {
			c.Mirror = loki.MirrorSync
		}
		c.Observer = func(_ context.Context, e loki.Event) {
			s.tell("  instance %d: %s %s %s %v", i, e.Kind, e.Handler, e.Op, e.Err)
		}
		l, err := loki.New(c)
		require.NoError(s.t, err)
		lockers = append(lockers, l)
	}
	ctx, stop := context.WithTimeout(s.t.Context(), simLength)
	defer stop()
	var wg sync.WaitGroup
	for i, l := range lockers {
		wg.Go(func() { s.instance(ctx, i, l) })
	}
	wg.Go(func() { s.nemesis(ctx) })
	wg.Wait()

	for _, link := range s.links {
		s.set(link, false, simFaults[0].fault)
	}
	s.healthy = append(s.healthy, simInterval{start: s.fineSince, end: simLength + time.Hour})
	s.tell("all is well again")
	// A free key is taken by the next caller within one expiry, once the breaker has looked.
	time.Sleep(loki.BreakerMaxPause * 2)
	healed := time.Now()
	err := lockers[0].ExecuteWithinLock(s.t.Context(), simExpiry, func(context.Context) error { return nil }, loki.WithWait(simExpiry+100*time.Millisecond))
	if err != nil {
		s.t.Errorf("the lock was not to be had %v after all was well: %v", time.Since(healed), err)
	}
	for _, l := range lockers {
		require.NoError(s.t, l.Close(s.t.Context()))
	}
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	require.Empty(s.t, s.primary.now().HeldKeys())
	require.Empty(s.t, s.secondary.now().HeldKeys())
}

// instance calls again and again.
func (s *simulation) instance(ctx context.Context, who int, l *loki.Locker) {
	for ctx.Err() == nil {
		var out loki.Outcome
		ran := false
		works := time.Duration(s.intn(6000)) * time.Millisecond
		opts := []loki.Option{loki.WithOutcome(&out)}
		switch s.intn(4) {
		case 0:
			opts = append(opts, loki.WithWait(time.Duration(s.intn(3000))*time.Millisecond))
		case 1:
			opts = append(opts, loki.WithoutRenewal())
		}
		var interval simInterval
		err := l.ExecuteWithinLock(ctx, simExpiry, func(ctx context.Context) error {
			ran = true
			interval = simInterval{who: who, start: time.Since(s.start)}
			s.tell("instance %d runs", who)
			sleepCtx(ctx, works)
			interval.end = time.Since(s.start)
			s.tell("instance %d ends: %v", who, context.Cause(ctx))
			return nil
		}, opts...)
		if ran != out.Ran {
			s.t.Errorf("fn ran: %v, and the outcome says %v", ran, out.Ran)
		}
		notRun := errors.Is(err, loki.ErrBusy) || errors.Is(err, loki.ErrUnavailable)
		if ran == notRun && ctx.Err() == nil {
			s.t.Errorf("fn ran: %v, and the error says %v", ran, err)
		}
		if ran {
			interval.err = err
			s.mu.Lock()
			s.intervals = append(s.intervals, interval)
			s.mu.Unlock()
		}
		sleepCtx(ctx, time.Duration(s.intn(400))*time.Millisecond)
	}
}

func sleepCtx(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// nemesis changes one thing at a time.
func (s *simulation) nemesis(ctx context.Context) {
	for ctx.Err() == nil {
		sleepCtx(ctx, time.Duration(s.intn(700))*time.Millisecond)
		switch n := s.intn(10); {
		case n == 0 && s.forgets:
			s.tell("the primary restarts empty")
			s.primary.restart()
		case n == 1 && s.forgets:
			s.tell("the primary loses its last write")
			s.primary.promote(ctx)
		case n < 4: // one store as seen by all
			f, of := simFaults[s.intn(len(simFaults))], s.intn(2)
			s.tell("all links %d: %s", of, f.name)
			for i, link := range s.links {
				if s.mode == "alone" || i%2 == of {
					s.set(link, f.name != "fine", f.fault)
				}
			}
		case n < 7:
			f, link := simFaults[s.intn(len(simFaults))], s.links[s.intn(len(s.links))]
			s.tell("link of %s: %s", link.name, f.name)
			s.set(link, f.name != "fine", f.fault)
		default:
			s.tell("all links are fine")
			for _, link := range s.links {
				s.set(link, false, simFaults[0].fault)
			}
		}
	}
}

// set puts a link into a state, and notes from when on and until when every instance reaches the secondary.
func (s *simulation) set(link *simLink, broken bool, fault func(*rand.Rand) lokitest.Fault) {
	link.broken = broken
	fine := true
	for i, link := range s.links {
		fine = fine && (i%2 == 0 || !link.broken)
	}
	switch now := time.Since(s.start); {
	case fine && s.fineSince < 0:
		s.fineSince = now
	case !fine && s.fineSince >= 0:
		s.healthy = append(s.healthy, simInterval{start: s.fineSince, end: now})
		s.fineSince = -1
	}
	link.faults.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
		s.mu.Lock()
		defer s.mu.Unlock()
		return fault(s.rand)
	})
}

// overlaps calls f for every two closures that ran at once.
func (s *simulation) overlaps(f func(a, b simInterval, length time.Duration)) {
	for i, a := range s.intervals {
		for _, b := range s.intervals[:i] {
			if length := min(a.end, b.end) - max(a.start, b.start); length > 0 {
				f(a, b, length)
			}
		}
	}
}

func simulate(t *testing.T, mode string, forgets bool, check func(s *simulation)) {
	seeds := make([]uint64, 0, *simSchedules)
	for i := range *simSchedules {
		seeds = append(seeds, uint64(i+1))
	}
	if *simSeed != 0 {
		seeds = []uint64{*simSeed}
	}
	for _, seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			s := &simulation{t: t, mode: mode, forgets: forgets, primary: newSimStore(), secondary: newSimStore(), rand: rand.New(rand.NewPCG(seed, 1))}
			s.run()
			check(s)
			if t.Failed() {
				t.Logf("the schedule of -loki.seed=%d:\n%s", seed, s.story.String())
			}
		})
		if t.Failed() {
			t.FailNow()
		}
	}
}

func (s *simulation) requireNoOverlap() {
	s.overlaps(func(a, b simInterval, length time.Duration) {
		s.t.Errorf("instances %d and %d ran at once for %v, from %v on", a.who, b.who, length, max(a.start, b.start))
	})
}

func TestSimulation_PrimaryAloneThatKeepsItsKeys(t *testing.T) {
	simulate(t, "alone", false, (*simulation).requireNoOverlap)
}

func TestSimulation_SyncNeverOverlaps(t *testing.T) {
	simulate(t, "sync", true, (*simulation).requireNoOverlap)
}

func TestSimulation_AsyncEndsOverlaps(t *testing.T) {
	var seen int
	simulate(t, "async", true, func(s *simulation) {
		s.overlaps(func(a, b simInterval, _ time.Duration) {
			seen++
			start, end := max(a.start, b.start), min(a.end, b.end)
			for _, h := range s.healthy {
				if length := min(end, h.end) - max(start, h.start); length > simDetected {
					s.t.Errorf("instances %d and %d ran at once for %v while every instance reached the secondary, from %v on: %v, %v",
						a.who, b.who, length, max(start, h.start), a.err, b.err)
				}
			}
		})
	})
	if *simSeed == 0 && seen == 0 {
		t.Error("no overlap in any schedule: the faults are too tame to prove anything")
	}
	t.Logf("%d overlaps in %d schedules", seen, *simSchedules)
}
