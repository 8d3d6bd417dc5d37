// Package turns gives out turns by key: at most one caller has the turn of a key at a time, and those who wait for it get
// it in the order in which they came.
//
// It is a mutex for each key that a context and a deadline can interrupt, and that leaves nothing behind when a key is not
// in use. It starts no goroutine: the one who is done hands the turn to the next. It does not know what a turn is for, and
// nobody is told how long one takes.
package turns

import (
	"context"
	"sync"
	"time"
)

// Queue is the turns of all keys. It is safe for concurrent use.
type Queue struct {
	mu   sync.Mutex       // guards what follows and every line; not held while anybody waits
	keys map[string]*line // those whose turn somebody has; nil while nobody waits for it
}

// line is those who wait for the turn of one key, the first of them first: a list, so that any of them can leave.
type line struct {
	first, last *waiter
	length      int
}

type waiter struct {
	prev, next *waiter
	turn       chan struct{} // closed when the turn is handed over; the waiter is out of the line then
}

// New returns a queue in which nobody has a turn.
func New() *Queue { return &Queue{keys: make(map[string]*line)} }

// TryTake takes the turn of key if nobody has it, and reports whether it did. Then the caller has to call [Queue.Done].
func (q *Queue) TryTake(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, taken := q.keys[key]; taken {
		return false
	}
	q.keys[key] = nil
	return true
}

// Take waits for the turn of key until ctx ends or deadline has passed; a zero deadline is none. It reports whether the
// caller has the turn, and then has to call [Queue.Done]. Who comes too late gets no turn, even if nobody else has it.
func (q *Queue) Take(ctx context.Context, key string, deadline time.Time) bool {
	if isLate(ctx, deadline) {
		return false
	}
	w := q.join(key)
	if w == nil {
		return true
	}
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.turn:
	case <-late:
	case <-ctx.Done():
	}
	if !isLate(ctx, deadline) {
		return true
	}
	if !q.leave(key, w) { // the turn was handed over at this very moment
		q.Done(key)
	}
	return false
}

func isLate(ctx context.Context, deadline time.Time) bool {
	return ctx.Err() != nil || !deadline.IsZero() && !time.Now().Before(deadline)
}

// Done ends the caller's turn of key. The first in the line has it when Done returns. A turn that nobody has cannot be
// ended: that is a mistake in the program, and panics.
func (q *Queue) Done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, taken := q.keys[key]
	if !taken {
		panic("turns: Done without a turn of " + key)
	}
	if l == nil {
		delete(q.keys, key)
		return
	}
	next := l.first
	q.remove(key, l, next)
	close(next.turn)
}

// Waiting returns how many wait for the turn of key. The one who has it does not count.
func (q *Queue) Waiting(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.keys[key]; l != nil {
		return l.length
	}
	return 0
}

// join takes the turn of key and returns nil, or puts a waiter at the end of the line.
func (q *Queue) join(key string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, taken := q.keys[key]
	if !taken {
		q.keys[key] = nil
		return nil
	}
	if l == nil {
		l = &line{}
		q.keys[key] = l
	}
	w := &waiter{prev: l.last, turn: make(chan struct{})}
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.length++
	return w
}

// leave takes w out of the line, and reports false if it has the turn already.
func (q *Queue) leave(key string, w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.turn:
		return false
	default:
		q.remove(key, q.keys[key], w)
		return true
	}
}

// remove is called with mu held.
func (q *Queue) remove(key string, l *line, w *waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	if l.length--; l.length == 0 {
		q.keys[key] = nil // the turn is taken, and nobody waits
	}
}
