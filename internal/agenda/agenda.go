// Package agenda keeps many deadlines with one heap and one timer.
//
// A timer for each deadline costs an allocation, and the runtime moves all of them. Most deadlines of a process that is
// well are set and stopped again long before they are due: here that costs a few comparisons, and the runtime's timer is
// touched only for a deadline that is earlier than all others. There is no goroutine while nothing is due, so there is
// nothing to close. A deadline may have some time before it in which it is called as well if another one is due then: so
// deadlines come together that need not be apart, and what is done for all of them is done once. It does not know what its
// entries are for.
package agenda

import (
	"math"
	"sync"
	"time"
)

// Agenda calls the functions of entries when they are due. It is safe for concurrent use.
type Agenda struct {
	start time.Time // deadlines are counted from here, on the monotonic clock
	rest  func()    // see New

	mu      sync.Mutex // guards what follows and every entry; not held while a function runs
	heap    []*Entry   // the earliest first; the children of i are 2i+1 and 2i+2
	timer   *time.Timer
	wake    time.Duration // for when the timer is set, never later than the first deadline; never if it is not set
	far     bool          // it was set for more than farAway
	calling bool          // functions are being called: whoever does that sets the timer in the end
}

// Entry is one deadline. It may be a field of what it is for, and must not be copied. [Entry.Init] says what to call.
type Entry struct {
	owner Owner
	at    time.Duration
	early time.Duration // how much earlier it may be called
	place int           // in the heap, counted from 1; 0: not scheduled
}

const (
	never = time.Duration(math.MaxInt64)

	// farAway is how long a timer may be set for that may go on when nothing is scheduled.
	farAway = time.Minute
)

// New returns an agenda without entries. It calls rest, as if that were an entry's, whenever all has been called that was due.
func New(rest func()) *Agenda { return &Agenda{start: time.Now(), rest: rest, wake: never} }

// Owner is what an entry is for.
type Owner interface {
	// Due is called when an entry is due. Calls of one agenda follow one another, on one goroutine, so it must be short: it
	// must not wait for anything but a mutex that is held briefly, and it starts a goroutine for what takes longer. It may
	// call Set and Stop.
	Due()
}

// Init sets the owner of e. It comes before the first [Agenda.Set], once.
func (e *Entry) Init(o Owner) { e.owner = o }

// Set has e called once at the time at, instead of when it was to be called before; or up to early before that, if
// an entry with an earlier deadline is due then. A time that has passed is now. The call is never made on the caller's
// goroutine, so the caller may hold a mutex that e's function locks. It costs O(log n) and allocates nothing but room in the
// heap.
//
// e may be about to be called already, for a deadline that has passed. Then it is called for that one too: a function
// whose deadline may move looks at the time itself.
func (a *Agenda) Set(e *Entry, at time.Time, early time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := e.at
	e.at, e.early = at.Sub(a.start), early // saturates, centuries away
	switch {
	case e.place == 0:
		a.heap = append(a.heap, e)
		e.place = len(a.heap)
		a.up(len(a.heap) - 1)
	case e.at < before:
		a.up(e.place - 1)
	default:
		a.down(e.place - 1)
	}
	a.arm()
}

// Stop takes e off the agenda, and reports whether it was on it. If it was not, e has been called, is being called, or is
// about to be.
func (a *Agenda) Stop(e *Entry) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.place == 0 {
		return false
	}
	a.remove(e.place - 1)
	// The timer may stay as it is: if it finds nothing due it is set anew, and setting it for each entry of an agenda that
	// has one at most would cost more than all the rest. But it must not keep an empty agenda in memory for years.
	if len(a.heap) == 0 && a.wake != never && a.far {
		a.timer.Stop()
		a.wake = never
	}
	return true
}

// arm sets the timer for the first deadline, if it is not set for that or an earlier one. It is called with mu held.
func (a *Agenda) arm() {
	if a.calling || len(a.heap) == 0 || a.heap[0].at >= a.wake {
		return
	}
	a.wake = a.heap[0].at
	left := max(a.wake-time.Since(a.start), 0)
	a.far = left > farAway
	if a.timer == nil {
		a.timer = time.AfterFunc(left, a.due)
	} else {
		a.timer.Reset(left)
	}
}

// due calls what is due. A timer that was set anew while it fired may start a second one: that leaves the rest to the
// first.
func (a *Agenda) due() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calling {
		return
	}
	a.calling, a.wake = true, never
	early := false // only if something is due
	for {
		called := false
		for len(a.heap) > 0 && a.isDue(a.heap[0], early) {
			called, early = true, true
			e := a.heap[0]
			a.remove(0)
			a.mu.Unlock()
			e.owner.Due()
			a.mu.Lock()
		}
		if !called {
			break
		}
		a.mu.Unlock()
		a.rest()
		a.mu.Lock()
		early = false
	}
	a.calling = false
	a.arm()
}

// isDue is called with mu held.
func (a *Agenda) isDue(e *Entry, early bool) bool {
	at := e.at
	if early {
		at -= e.early
	}
	return at <= time.Since(a.start)
}

// remove takes the entry at i out of the heap. It is called with mu held.
func (a *Agenda) remove(i int) {
	last := len(a.heap) - 1
	a.heap[i].place = 0
	moved := a.heap[last]
	a.heap[last] = nil // or the array would keep it alive
	a.heap = a.heap[:last]
	if i < last {
		a.put(moved, i)
		a.up(i)
		a.down(i)
	}
}

func (a *Agenda) put(e *Entry, i int) {
	a.heap[i] = e
	e.place = i + 1
}

// up moves the entry at i towards the front, as far as it belongs.
func (a *Agenda) up(i int) {
	e := a.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if a.heap[parent].at <= e.at {
			break
		}
		a.put(a.heap[parent], i)
		i = parent
	}
	a.put(e, i)
}

// down moves the entry at i away from the front, as far as it belongs.
func (a *Agenda) down(i int) {
	e := a.heap[i]
	for {
		child := 2*i + 1
		if child+1 < len(a.heap) && a.heap[child+1].at < a.heap[child].at {
			child++
		}
		if child >= len(a.heap) || e.at <= a.heap[child].at {
			break
		}
		a.put(a.heap[child], i)
		i = child
	}
	a.put(e, i)
}
