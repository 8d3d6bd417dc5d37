package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// key is the one lock of every simulation.
const key = "job"

// Result is what came of a schedule.
type Result struct {
	Breaches []string // of promises, in the order in which they were noticed
	Laws     []string // which of them each breaks: a text that is the same for any two breaches of one law
	Story    string   // what happened, if it was to be told

	Runs     []string // each run of a closure: who, from when to when, with which fence, and whether it lost its lock
	Overlaps int      // pairs of them that ran at once
	Lost     int      // of them that lost their lock
	Crashes  int
}

// world is one playing of a schedule.
type world struct {
	schedule Schedule
	stores   [2]*store
	start    time.Time
	telling  bool
	holds    sync.WaitGroup // of those who watch minimum holds

	mu        sync.Mutex // guards what follows; nothing else is called with it held
	processes []*process // the living one of each instance
	story     strings.Builder
	breaches  []string
	laws      []string
	crashes   []time.Duration
	runs      []*run
	attempts  []*attempt
	success   map[string]bool  // occurrences whose fn has returned nil
	ended     map[string]ended // claims whose call has returned
	held      time.Duration    // until when somebody holds for a minimum hold
	reached   []span           // when every instance reached the secondary
	reaching  time.Duration    // since when every instance does, negative while one does not
	forgot    [2]time.Duration // when a store forgot something last
	calms     []span           // when every instance reached every store, and none of them forgot anything
	calm      time.Duration    // since when that is so; never is while it is not
}

const (
	always = -1000 * time.Hour // since before the story
	never  = 1000 * time.Hour
)

// ended is a claim whose call has returned: when, who made it, and until when it is held all the same.
type ended struct {
	at, hold time.Duration
	process  *process
}

type span struct{ from, to time.Duration }

// Play plays a schedule to its end, and tells the story if asked to. A breach of a promise is no failure of t.
func Play(t *testing.T, s Schedule, telling bool) Result {
	t.Helper()
	var result Result
	synctest.Test(t, func(t *testing.T) {
		defer retry.Replay(s.Seed)()
		start := time.Now()
		w := &world{schedule: s, stores: [2]*store{newStore(start), newStore(start)}, start: start, telling: telling,
			success: make(map[string]bool), ended: make(map[string]ended), calm: always, forgot: [2]time.Duration{always, always}}
		if err := w.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		result = w.judge()
	})
	return result
}

func (w *world) now() time.Duration { return time.Since(w.start) }

func (w *world) tell(format string, args ...any) {
	if !w.telling {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.story, "%14v  %s\n", w.now(), fmt.Sprintf(format, args...))
}

func (w *world) breach(format string, args ...any) {
	text := fmt.Sprintf("%v: %s", w.now(), fmt.Sprintf(format, args...))
	w.tell("BREACH: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breaches, w.laws = append(w.breaches, text), append(w.laws, format)
}

func (w *world) ran(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = append(w.runs, r)
}

func (w *world) over(token string, p *process, hold time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[token] = ended{w.now(), hold, p}
	w.held = max(w.held, hold)
}

func (w *world) returned(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts = append(w.attempts, a)
}

func (w *world) succeeds(key string, occurrence int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.success[fmt.Sprint(key, occurrence)] = true
}

func (w *world) hasSucceeded(key string, occurrence int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.success[fmt.Sprint(key, occurrence)]
}

// missed reports whether a store did not hold a claim when it was released.
func (w *world) missed(token string) bool {
	return slices.ContainsFunc(w.stores[:], func(s *store) bool { return s.missed(token) })
}

func (w *world) process(id int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[id]
}

// play has everybody do what the schedule says, and then sees that all is well again.
func (w *world) play(ctx context.Context) error {
	for id := range instances {
		p, err := w.newProcess(ctx, id, 1)
		if err != nil {
			return err
		}
		w.processes = append(w.processes, p)
	}
	var plans, watchers sync.WaitGroup
	for i, plan := range w.schedule.Plans {
		plans.Go(func() {
			for _, c := range plan {
				time.Sleep(c.Pause)
				w.process(i%instances).perform(resource(i/instances), c)
			}
		})
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watchers.Go(func() { w.audit(watching) })
	for _, e := range w.schedule.Events {
		time.Sleep(e.At - w.now())
		if e.What == burst {
			w.burst(&plans, e)
		} else if err := w.happens(ctx, e); err != nil {
			return err
		}
	}
	plans.Wait()
	if err := w.finale(ctx); err != nil {
		return err
	}
	for id := range instances {
		if err := w.process(id).locker.Close(ctx); err != nil {
			return err
		}
	}
	closed := w.now()
	time.Sleep(w.settles())
	stop()
	watchers.Wait()
	w.holds.Wait()
	for i, s := range w.stores {
		for _, key := range s.locks() {
			if token := s.holds(ctx, key); !w.isOfCrashed(token) {
				w.breach("the %s still holds %.8s… for %s, %v after everybody had closed", storeNames[i], token, key, w.now()-closed)
			}
		}
	}
	time.Sleep(time.Minute) // the last repetition of a release may have been sent just now
	synctest.Wait()
	return nil
}

// burst has an instance lock one resource after the other, faster than they are released.
func (w *world) burst(plans *sync.WaitGroup, e Event) {
	w.tell("%v", e)
	r := rand.New(rand.NewPCG(e.salt, 3))
	var pause time.Duration
	for n := range e.Leases {
		pause += upTo(r, 4*time.Millisecond)
		c := Call{Pause: pause, Works: upTo(r, 3*time.Second)}
		plans.Go(func() {
			time.Sleep(c.Pause)
			w.process(e.Instance).perform(fmt.Sprintf("%s/burst%d", key, n), c)
		})
	}
}

// isOfCrashed reports whether a claim is of a process that is gone and cannot give it back.
func (w *world) isOfCrashed(token string) bool {
	w.mu.Lock()
	e, ok := w.ended[token]
	w.mu.Unlock()
	return ok && e.process.hasCrashed()
}

// happens makes an event happen.
func (w *world) happens(ctx context.Context, e Event) error {
	w.tell("%v", e)
	switch e.What {
	case forget:
		w.stores[e.Store].forget()
		w.noteForgot(e.Store)
	case lose:
		w.stores[e.Store].lose(ctx)
		w.noteForgot(e.Store)
	case crash:
		old := w.process(e.Instance)
		old.crash()
		if traits := w.schedule.Stores[primary]; traits.Plain || traits.Forgetful {
			w.noteCalm(false) // nobody may replace the record of one that died between two releases
		}
		w.mu.Lock()
		w.crashes = append(w.crashes, w.now())
		life := len(w.crashes) + 1
		w.mu.Unlock()
		p, err := w.newProcess(ctx, e.Instance, life)
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.processes[e.Instance] = p
		w.mu.Unlock()
	default:
		for id := range instances {
			for at, wire := range w.process(id).wires {
				switch {
				case e.What == calm:
					wire.set(fine, uint64(w.now()))
				case e.Store == at && (e.Instance == everybody || e.Instance == id):
					wire.set(e.Weather, e.salt)
				}
			}
		}
	}
	w.noteReach()
	return nil
}

// noteReach keeps account of when every instance reaches the secondary, and of when it reaches every store.
func (w *world) noteReach() {
	reach, calm := w.schedule.Mode != Alone, true
	for id := range instances {
		for at, wire := range w.process(id).wires {
			_, ok := wire.fineSince()
			calm = calm && ok
			reach = reach && (ok || at != secondary)
		}
	}
	w.noteCalm(calm)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch now := w.now(); {
	case reach && w.reaching < 0:
		w.reaching = now
	case !reach && w.reaching >= 0:
		w.reached = append(w.reached, span{w.reaching, now})
		w.reaching = -1
	}
}

func (w *world) noteForgot(at int) {
	w.noteCalm(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgot[at] = w.now()
}

func (w *world) noteCalm(calm bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch now := w.now(); {
	case calm && w.calm == never:
		w.calm = now
	case !calm && w.calm != never:
		w.calms = append(w.calms, span{w.calm, now})
		w.calm = never
	}
}

// calmSince is since when there has been no fault but crashes; never if there is one.
func (w *world) calmSince() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}
