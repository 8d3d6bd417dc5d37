package loki

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The short way of a call. While a store answers quickly, a handler that bounds its calls is called on the goroutine that
// waits for the answer: two switches between goroutines take as long as a round trip to a server on the same machine.
//
// Such an attempt ends when the second one is due (see store.call), so a connection that has died in silence costs no more
// time than otherwise. What it has left on its way counts as an attempt that failed.

// longestHere bounds such an attempt, because not every handler can end it when the caller cancels.
const longestHere = 100 * time.Millisecond

// mayAskHere reports whether an attempt may be made on this goroutine which ends after that time.
func (s *store) mayAskHere(op Op, limit time.Duration) bool {
	return s.bounds && (op == OpLock || op == OpExtend || op == OpRelease) && s.pace.isQuick(limit)
}

// askHere calls the handler on this goroutine, for that long at most.
func (s *store) askHere(ctx context.Context, op Op, c Claim, limit time.Duration, send func(context.Context, Claim) (Grant, error)) (Grant, error) {
	bounded := boundedContext{Context: ctx, deadline: time.Now().Add(limit)}
	defer bounded.end()
	c.Bounded = true
	return s.ask(&bounded, op, c, send)
}

// isReturned is [attempt.returned] of an attempt that was made on its caller's goroutine.
var isReturned = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// pace is how quickly a store has answered of late.
type pace struct {
	since    time.Time    // the times below are counted from here
	answered atomic.Int64 // when the latest call was answered; negative if it was not
	took     atomic.Int64 // how long that took
}

// paceHolds is how long a quick answer says that the next one will be. A connection that was idle for longer may have died
// in silence: then a second attempt beside the first one loses no time.
const paceHolds = time.Second

func (p *pace) note(a answer) {
	switch {
	case a.err == nil:
		now := time.Now()
		p.took.Store(int64(now.Sub(a.sent)))
		p.answered.Store(int64(now.Sub(p.since)))
	case !a.saysNothing():
		p.answered.Store(-1)
	}
}

// isQuick reports whether an answer is to be expected within the half of a time.
func (p *pace) isQuick(within time.Duration) bool {
	answered := p.answered.Load()
	return answered >= 0 && time.Since(p.since)-time.Duration(answered) < paceHolds && time.Duration(p.took.Load()) < within/2
}

// boundedContext is the context of a call on its caller's goroutine: the caller's, with a deadline. It has a timer only for
// a handler that asks for Done. From then on it is one of the standard library's, which contexts derived from it look for.
type boundedContext struct {
	context.Context // the caller's
	deadline        time.Time

	mu     sync.Mutex // guards what follows
	timed  context.Context
	cancel context.CancelFunc
}

// Deadline returns the deadline.
func (c *boundedContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done returns a channel that is closed at the deadline, or when the caller's context ends.
func (c *boundedContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(c.Context, c.deadline)
	}
	return c.timed.Done()
}

// now returns the context as it is by now.
func (c *boundedContext) now() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed != nil {
		return c.timed
	}
	return c.Context
}

// Err returns why the context has ended.
func (c *boundedContext) Err() error {
	if err := c.now().Err(); err != nil || time.Now().Before(c.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// Value returns a value of the caller's context.
func (c *boundedContext) Value(key any) any { return c.now().Value(key) }

func (c *boundedContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}
