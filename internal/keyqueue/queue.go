// Package keyqueue runs work for many keys: one piece at a time for each key, a bounded number at once, the most urgent
// first. Callers that do their own work take a key's turn from the same queue, so that order holds across both.
//
// It knows no locks and no stores: its owner says what is due for a key, and does it.
package keyqueue

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Nothing is the class of a key for which no work is due.
const Nothing = -1

// Config is what a Queue is made of.
type Config struct {
	// Classes is the number of classes of urgency: 0 is the most urgent. Work of class 0 goes before a caller that waits
	// for the key, all other work behind it.
	Classes int

	// Slots is how many pieces of work run at once. One that has run for Patience gives its slot back: slots measure work
	// that makes progress, not work that hangs. Limit is how many may run all the same.
	Slots    int
	Patience time.Duration
	Limit    int

	// Due returns the class of the work that is due for key, or Nothing and when to look again; a zero time means when
	// Changed is called. It is called with the queue's mutex held.
	Due func(key string) (class int, at time.Time)

	// Work does what is due for key. It is called in the key's turn.
	Work func(key string)
}

// Queue is the queue. Its methods may be called by any number of goroutines at once.
type Queue struct {
	Config

	mu      sync.Mutex
	sites   map[string]*site // a key is here while it has work, a caller, or a time to look again
	ready   [][]*site        // by class, the oldest first; a key that is not queued there any more leaves an old entry behind
	queued  []int            // by class, the keys that are queued
	holding int              // pieces of work that hold a slot
	running int              // pieces of work that a slot was taken for and that have not returned
	spare   *site            // one that is no longer needed, for the next key
}

// site is one key.
type site struct {
	key     string
	busy    bool      // the turn is taken
	queued  bool      // it waits for a slot; the turn is free then
	class   int       // of the work that it waits with
	listed  uint64    // the classes in which it has an entry in ready, by bit
	since   time.Time // since when
	callers []chan struct{}
	timer   *time.Timer
}

// New returns an empty Queue.
func New(c Config) *Queue {
	return &Queue{Config: c, sites: make(map[string]*site), ready: make([][]*site, c.Classes), queued: make([]int, c.Classes)}
}

// at is called with mu held.
func (q *Queue) at(key string) *site {
	s := q.sites[key]
	if s == nil {
		if s = q.spare; s == nil {
			s = &site{}
		}
		s.key, q.spare = key, nil
		q.sites[key] = s
	}
	return s
}

// remove is called with mu held.
func (q *Queue) remove(s *site) {
	delete(q.sites, s.key)
	if s.timer != nil {
		s.timer.Stop()
	} else if s.listed == 0 { // nothing refers to it
		q.spare = s
	}
}

// Changed says that what is due for key may have changed.
func (q *Queue) Changed(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.at(key)
	if !s.busy { // whoever has the turn looks again when it passes it on
		q.plan(s)
	}
}

// Take waits for key's turn, behind the callers before it and behind work of class 0. It reports false if ctx or the
// deadline ended first; else the caller calls Done.
func (q *Queue) Take(ctx context.Context, key string, deadline time.Time) bool {
	q.mu.Lock()
	s := q.at(key)
	if !s.busy {
		q.dequeue(s)
		s.busy = true
		if class, _ := q.Due(key); class != 0 {
			q.mu.Unlock()
			return true
		}
		go q.work(s)
	}
	mine := make(chan struct{})
	s.callers = append(s.callers, mine)
	q.mu.Unlock()

	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-mine:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(s.callers, mine); i >= 0 {
		s.callers = slices.Delete(s.callers, i, i+1)
		return false
	}
	q.pass(s) // the turn was handed over at the last moment
	return false
}

// Done ends a caller's turn.
func (q *Queue) Done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass(q.sites[key])
}

// Waiting returns how many callers wait for key's turn.
func (q *Queue) Waiting(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.sites[key]; s != nil {
		return len(s.callers)
	}
	return 0
}

// Behind returns for how long the oldest work of a class has been waiting for a slot, zero if none has.
func (q *Queue) Behind(class int) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.first(class); s != nil {
		return time.Since(s.since)
	}
	return 0
}

// Queued returns how many keys wait for a slot with work of a class.
func (q *Queue) Queued(class int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued[class]
}

// first returns the oldest entry of a class, nil if there is none, and drops old entries. It is called with mu held.
func (q *Queue) first(class int) *site {
	for len(q.ready[class]) > 0 {
		s := q.ready[class][0]
		if s.queued && s.class == class {
			return s
		}
		s.listed &^= 1 << class
		q.ready[class][0] = nil
		q.ready[class] = q.ready[class][1:]
	}
	return nil
}

// enqueue is called with mu held.
func (q *Queue) enqueue(s *site, class int) {
	since := time.Now()
	if s.queued {
		since = s.since
	}
	q.dequeue(s)
	s.queued, s.class, s.since = true, class, since
	q.queued[class]++
	if s.listed&(1<<class) == 0 {
		s.listed |= 1 << class
		q.ready[class] = append(q.ready[class], s)
	}
}

// dequeue is called with mu held.
func (q *Queue) dequeue(s *site) {
	if s.queued {
		s.queued = false
		q.queued[s.class]--
	}
}

// pass hands the turn on. It is called with mu held.
func (q *Queue) pass(s *site) {
	if len(s.callers) == 0 {
		s.busy = false
		q.plan(s)
		return
	}
	if class, _ := q.Due(s.key); class == 0 {
		go q.work(s)
		return
	}
	close(s.callers[0])
	s.callers = slices.Delete(s.callers, 0, 1)
}

// plan sees to it that what is due for s gets a worker, now or when it is. It is called with mu held, and nobody has the turn.
func (q *Queue) plan(s *site) {
	class, at := q.Due(s.key)
	switch {
	case class != Nothing && s.queued && s.class <= class:
		return
	case class != Nothing:
		q.enqueue(s, class)
		q.dispatch()
		return
	}
	q.dequeue(s)
	switch {
	case at.IsZero():
		q.remove(s)
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(at), func() { q.look(s) })
	default:
		s.timer.Reset(time.Until(at))
	}
}

// look is the timer of s.
func (q *Queue) look(s *site) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sites[s.key] == s && !s.busy {
		q.plan(s)
	}
}

// dispatch starts workers. It is called with mu held.
func (q *Queue) dispatch() {
	for class := range q.ready {
		for q.holding < q.Slots && q.running < q.Limit {
			s := q.first(class)
			if s == nil {
				break
			}
			q.dequeue(s)
			s.busy = true
			q.holding++
			q.running++
			go q.workInSlot(s)
		}
	}
}

// workInSlot does one piece of work: others may be more urgent than the key's next one.
func (q *Queue) workInSlot(s *site) {
	giveBack := sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.holding--
		q.dispatch()
	})
	timer := time.AfterFunc(q.Patience, giveBack)
	q.Work(s.key)
	timer.Stop()
	giveBack()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.pass(s)
	q.dispatch()
}

// work does a piece of work that a caller waits behind, without a slot.
func (q *Queue) work(s *site) {
	q.Work(s.key)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass(s)
}
