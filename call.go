package loki

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// repeatFraction is the part of a call's time after which a call that has had no answer is made again. The connection
// that carries the first attempt may be dead: a firewall forgets an idle one without a word to either end.
const repeatFraction = 4

// answer is what a store said, or that it did not.
type answer struct {
	Grant
	sent   time.Time     // before the first attempt, on the monotonic clock: what a lease is counted from
	expiry time.Duration // for how long the claim was asked for
	err    error         // nil, or a *HandlerError: the outcome is unknown

	// repeated says that a second attempt was sent.
	repeated bool

	// failed says that an attempt ended with an error, whatever the other one brought: it may have been carried out, or
	// may be yet.
	failed bool

	// left are the attempts that had not returned when the call was over. They may be carried out yet.
	left []*attempt

	// weakest is the shortest expiry that an attempt asked for.
	weakest time.Duration

	// calledOff says that ctx ended the call: the store's silence says nothing about it.
	calledOff bool

	// cutShort says that the store failed in hardly any time: see leastPatience. It says nothing about the store either.
	cutShort bool

	// records says that the call could record a claim that was not there before.
	records bool

	// reports says, of a release, that Held is what it found.
	reports bool
}

// unknown reports whether an attempt of the call has an outcome that nobody knows, or nobody knows yet.
func (a answer) unknown() bool { return a.failed || len(a.left) > 0 }

// call asks the handler for c, and waits for the answer as long as ctx and the smaller of limit and the store's timeout
// allow. If ends is not zero, c is asked for until then.
//
// A first attempt that is silent for a quarter of that time is followed by a second one beside it, and the first answer
// counts. An error counts only if there is no answer. Whatever has not returned by then is abandoned: it goes on, on its
// own goroutine, until the handler returns. Only a goroutine can be abandoned, and a handler may ignore its ctx: go-redis
// does with its default settings.
func (s *store) call(ctx context.Context, op string, c Claim, ends time.Time, limit time.Duration, ask func(context.Context, Claim) (Grant, error)) (a answer) {
	a = answer{sent: time.Now(), expiry: c.Expiry, weakest: c.Expiry}
	short := limit < min(leastPatience, s.timeout)
	defer func() {
		a.cutShort = short && a.err != nil && time.Since(a.sent) >= limit
		s.health.note(ctx, op, c.Key, a)
	}()
	abandoned := s.abandonedBy(op)
	if abandoned.Load() >= MaxAbandonedCalls {
		a.err = s.wrap(op, c, Unavailable(fmt.Errorf("not asked: %d earlier calls have not returned", MaxAbandonedCalls)))
		return a
	}
	limit = min(limit, s.timeout)
	if limit <= 0 {
		a.err = s.wrap(op, c, Unavailable(fmt.Errorf("not asked, no time left: %w", context.DeadlineExceeded)))
		return a
	}
	x := &exchange{store: s, op: op, ask: ask, abandoned: abandoned}
	x.ctx, x.cancel = context.WithTimeout(ctx, limit)
	x.open.Store(1)
	defer x.leave()

	if !ends.IsZero() {
		c.Expiry = untilEnd(ends)
		a.expiry, a.weakest = c.Expiry, c.Expiry
	}
	first := x.send(c)
	attempts := []*attempt{first}
	var silence <-chan time.Time
	if op != opNotify { // its connection is the handler's to watch, and a second subscription would have to be ended
		deadline, _ := x.ctx.Deadline()
		timer := time.NewTimer(time.Until(deadline) / repeatFraction)
		defer timer.Stop()
		silence = timer.C
	}
	var answered *attempt
	firstDone, secondDone := first.returned, (chan struct{})(nil)
	for answered == nil && (firstDone != nil || secondDone != nil) {
		select {
		case <-firstDone:
			firstDone = nil
			if first.err == nil {
				answered = first
			}
		case <-secondDone:
			secondDone = nil
			if attempts[1].err == nil {
				answered = attempts[1]
			}
		case <-silence:
			if abandoned.Load() >= MaxAbandonedCalls {
				continue
			}
			c.Repeated, a.repeated = true, true
			if !ends.IsZero() {
				c.Expiry = untilEnd(ends)
				a.weakest = c.Expiry
			}
			second := x.send(c)
			attempts, secondDone = append(attempts, second), second.returned
		case <-x.ctx.Done():
			firstDone, secondDone = nil, nil
		}
	}

	var err error
	for _, t := range attempts {
		switch {
		case !t.done():
			x.abandon(t)
			a.left = append(a.left, t)
		case t.err != nil:
			a.failed, err = true, moreTelling(err, t.err)
		case answered == nil: // at the last moment: that is better than not knowing
			answered = t
		case t.grant.Held != answered.grant.Held:
			a.failed = true // which of them was carried out last is not known
		}
	}
	if answered != nil {
		a.Grant = answered.grant
		return a
	}
	a.calledOff = ctx.Err() != nil
	if err == nil { // no attempt has returned: they could only say this
		err = x.ctx.Err()
	}
	if !a.calledOff && errors.Is(err, context.DeadlineExceeded) {
		err = Unavailable(fmt.Errorf("no answer within %v: %w", limit.Round(time.Millisecond), err))
	}
	a.err = s.wrap(op, c, err)
	return a
}

func untilEnd(ends time.Time) time.Duration {
	return max(retry.CeilMillisecond(time.Until(ends)), time.Millisecond)
}

// moreTelling returns the error that says more about why there is no answer: a permanent error before an outage, and
// both before the end of a context. Either may be nil.
func moreTelling(first, second error) error {
	rank := func(err error) int {
		switch {
		case err == nil:
			return 0
		case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
			return 1
		case IsUnavailable(err):
			return 2
		}
		return 3
	}
	if rank(second) > rank(first) {
		return second
	}
	return first
}

// exchange is what the attempts of one call have in common.
type exchange struct {
	store     *store
	op        string
	ask       func(context.Context, Claim) (Grant, error)
	abandoned *atomic.Int64 // the store's count of abandoned calls

	ctx    context.Context
	cancel context.CancelFunc
	open   atomic.Int32 // the attempts that have not returned, and the call itself: the last one to leave ends ctx
}

// An attempt runs until its handler returns or its call abandons it.
const (
	attemptRunning int32 = iota
	attemptReturned
	attemptAbandoned
)

// attempt is one request of a call, on a goroutine of its own.
type attempt struct {
	state    atomic.Int32
	returned chan struct{} // closed when the handler has returned: then the fields below may be read
	grant    Grant
	err      error
}

// done reports whether the handler has returned.
func (t *attempt) done() bool {
	select {
	case <-t.returned:
		return true
	default:
		return false
	}
}

var (
	errNoReply  = errors.New("the handler ended its goroutine instead of returning")
	errPanicked = errors.New("the handler panicked")
)

func (x *exchange) send(c Claim) *attempt {
	t := &attempt{returned: make(chan struct{}), err: errNoReply}
	x.open.Add(1)
	go func() {
		defer x.leave()
		defer func() {
			if v := recover(); v != nil {
				t.err = fmt.Errorf("%w: %v", errPanicked, v)
				x.store.events.emit(x.ctx, Event{Kind: KindPanic, Handler: x.store.name, Op: x.op, Key: c.Key,
					Err: fmt.Errorf("loki: the %s handler panicked: %s\n%s", x.store.name, oneLine(fmt.Errorf("%v", v)), debug.Stack())})
			}
			close(t.returned)
			if !t.state.CompareAndSwap(attemptRunning, attemptReturned) {
				x.abandoned.Add(-1)
			}
		}()
		t.grant, t.err = x.ask(x.ctx, c)
	}()
	return t
}

// abandon counts an attempt that nobody waits for as abandoned, if it has not returned when its time is up. One that lost to
// the other attempt has its time still: a store that is only slow leaves one behind for each of its callers.
func (x *exchange) abandon(t *attempt) {
	count := func() {
		x.abandoned.Add(1) // before the swap, so that the goroutine cannot subtract what has not been added
		if !t.state.CompareAndSwap(attemptRunning, attemptAbandoned) {
			x.abandoned.Add(-1)
		}
	}
	if x.ctx.Err() != nil { // now, so that the next call counts it
		count()
	} else {
		context.AfterFunc(x.ctx, count)
	}
}

// leave ends ctx when nobody needs it any more. An attempt that lost to the other one keeps it until its deadline: a store
// that is only slow answers before that, the outcome is known then, and the connection is not thrown away.
func (x *exchange) leave() {
	if x.open.Add(-1) == 0 {
		x.cancel()
	}
}

// inFlight returns the attempts that have not returned, and reports whether one of the others failed.
func inFlight(attempts []*attempt) (left []*attempt, failed bool) {
	for _, t := range attempts {
		if !t.done() {
			left = append(left, t)
		} else if t.err != nil {
			failed = true
		}
	}
	return left, failed
}
