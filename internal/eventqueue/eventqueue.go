// Package eventqueue hands values to a function that may be slow, in order and one at a time, without delaying those who
// have the values.
//
// The function runs on a goroutine of the queue's that ends when there is nothing left. What it cannot keep up with is
// dropped and counted. A panic of the function does not end the process, and if it ends its goroutine, the values behind
// are handled nevertheless. It does not know what the values are.
package eventqueue

import (
	"context"
	"runtime/debug"
	"sync"
)

// Queue is the values that wait for Handle. The exported fields are set before the first use and not changed after it.
// The methods are safe for concurrent use.
type Queue[T any] struct {
	// Handle gets each value. It may add values, and must not wait for Flush.
	Handle func(T)

	// Limit is how many values may wait. Important ones have twice the room.
	Limit int

	// Dropped makes the value that reports that n values were dropped, last the last of them. Handle gets it in their
	// place.
	Dropped func(last T, n int) T

	// Panicked makes the value that reports that Handle panicked on v. Handle gets it next; a panic on that is not
	// reported.
	Panicked func(v T, reason any, stack []byte) T

	mu      sync.Mutex // guards what follows; not held while a function runs
	items   []item[T]  // those from head on wait
	head    int
	gap     item[T] // what was dropped since the last item came
	running bool
}

// item is one thing to do.
type item[T any] struct {
	value   T
	dropped int           // not 0: value is the last of so many that were dropped
	reached chan struct{} // not nil: a caller of Flush waits for its place
}

// keepRoom is how many items an idle queue keeps room for.
const keepRoom = 64

// Add gives v its place. It never blocks: if there is no room, v is dropped.
func (q *Queue[T]) Add(v T, important bool) {
	limit := q.Limit
	if important {
		limit *= 2
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items)-q.head >= limit {
		q.gap = item[T]{value: v, dropped: q.gap.dropped + 1}
		return
	}
	q.push(item[T]{value: v})
}

// Flush waits until everything that was added before has been handled. If ctx ends first it returns ctx.Err().
func (q *Queue[T]) Flush(ctx context.Context) error {
	q.mu.Lock()
	if !q.running {
		q.mu.Unlock()
		return nil
	}
	reached := make(chan struct{})
	q.push(item[T]{reached: reached})
	q.mu.Unlock()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// push is called with mu held.
func (q *Queue[T]) push(i item[T]) {
	if q.head > len(q.items)/2 { // or a queue that is never empty would grow
		rest := copy(q.items, q.items[q.head:])
		clear(q.items[rest:])
		q.items, q.head = q.items[:rest], 0
	}
	if q.gap.dropped > 0 {
		q.items = append(q.items, q.gap)
		q.gap = item[T]{}
	}
	q.items = append(q.items, i)
	if !q.running {
		q.running = true
		go q.run()
	}
}

// next takes the first item out of the queue. If there is none the queue is idle.
func (q *Queue[T]) next() (i item[T], ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.items) {
		i = q.items[q.head]
		q.items[q.head] = item[T]{} // or the array would keep its value alive
		q.head++
		return i, true
	}
	if i = q.gap; i.dropped > 0 {
		q.gap = item[T]{}
		return i, true
	}
	q.running = false
	q.items, q.head = q.items[:0], 0
	if cap(q.items) > keepRoom {
		q.items = nil
	}
	return i, false
}

// run does what the items say until there are none.
func (q *Queue[T]) run() {
	idle := false
	defer func() {
		if !idle { // Handle has ended this goroutine, as a failed test does: what is left gets another
			go q.run()
		}
	}()
	for {
		i, ok := q.next()
		switch {
		case !ok:
			idle = true
			return
		case i.reached != nil:
			close(i.reached)
		case i.dropped > 0:
			q.handle(q.Dropped(i.value, i.dropped))
		default:
			q.handle(i.value)
		}
	}
}

// handle calls Handle, and once more with the report if it panics.
func (q *Queue[T]) handle(v T) {
	if reason, stack := q.try(v); reason != nil {
		q.try(q.Panicked(v, reason, stack))
	}
}

// try returns the reason and the stack of a panic, which nobody else could recover on this goroutine.
func (q *Queue[T]) try(v T) (reason any, stack []byte) {
	defer func() {
		if reason = recover(); reason != nil {
			stack = debug.Stack()
		}
	}()
	q.Handle(v)
	return nil, nil
}
