package loki

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// repeatFraction is the part of a call's time after which a call that has had no answer is made again. The connection
// that carries the first attempt may be dead: a firewall forgets an idle one without a word to either end.
const repeatFraction = 4

// deadlineSlack returns how much before the caller's deadline a handler may end a call because of it: a tenth of the call's
// time, as redishandler does for a client whose connections it cannot bound, but not more than 50 ms.
func deadlineSlack(limit time.Duration) time.Duration {
	return min(max(limit/10, 5*time.Millisecond), 50*time.Millisecond)
}

// lateEnd is how long after its deadline a context may end on a busy machine.
const lateEnd = 250 * time.Millisecond

// answer is what a store said, or that it did not.
type answer struct {
	Grant
	sent   time.Time     // before the first attempt, on the monotonic clock: what a lease is counted from
	expiry time.Duration // for how long the claim was asked for
	ends   time.Time     // until when, if it was not for an expiry
	err    error         // nil, or a *HandlerError: there is no answer; see unknown

	// repeated says that a second attempt was sent.
	repeated bool

	// failed says that an attempt ended with an error, whatever the other one brought: it may have been carried out, or
	// may be yet.
	failed bool

	// left are the attempts that had not returned when the call was over. They may be carried out yet.
	left []*attempt

	// weakest is the shortest expiry that an attempt asked for.
	weakest time.Duration

	calledOff bool // ctx ended the call
	cutShort  bool // the store had hardly any time to answer: see leastPatience

	// couldRecord says that the call could record a claim that was not there before.
	couldRecord bool

	// reports says, of a release, that Held is what it found.
	reports bool
}

// saysNothing reports whether silence of the store would mean nothing.
func (a answer) saysNothing() bool { return a.calledOff || a.cutShort }

// unknown reports whether an attempt of the call has an outcome that nobody knows, or nobody knows yet.
func (a answer) unknown() bool { return a.failed || len(a.left) > 0 }

// call sends c to the handler, by send or, if that is nil, as op says, and waits for the answer as long as ctx and the smaller
// of limit and the store's timeout allow. If ends is not zero, c is requested until then.
//
// A first attempt that is silent for a quarter of that time is followed by a second one beside it, and the first answer
// counts. An error counts only if there is no answer. What has not returned by then is abandoned: it goes on, on its own
// goroutine, until the handler returns. Only a goroutine can be abandoned, and a handler may ignore its ctx: go-redis does
// with its default settings.
//
// Where that may be, the first attempt is made on this goroutine, see bounded.go. If batched is not nil it has been made
// already, see batch.go, and the time is counted from then: whatever ends this call early, that attempt may be on its way.
func (s *store) call(ctx context.Context, op Op, c Claim, ends time.Time, limit time.Duration, send func(context.Context, Claim) (Grant, error), batched *attempt) (a answer) {
	a = answer{sent: time.Now(), expiry: c.Expiry, ends: ends, weakest: c.Expiry}
	abandoned := s.abandonedBy(op)
	if batched != nil {
		a.sent, limit = batched.sent, batched.limit
	}
	patience := limit
	limit = min(limit, s.timeout)
	if batched == nil {
		if err := ctx.Err(); err != nil {
			a.calledOff, a.err = true, s.wrap(op, c, err)
			return a
		}
		if err := abandoned.refusal(op, c.Key); err != nil {
			a.err = s.wrap(op, c, err)
			return a
		}
		if limit <= 0 {
			a.cutShort, a.err = true, s.wrap(op, c, NotSent(fmt.Errorf("not asked, no time left: %w", context.DeadlineExceeded)))
			return a
		}
	}
	short := patience < min(leastPatience, s.timeout)
	defer func() {
		a.cutShort = short && a.err != nil && time.Since(a.sent) >= patience-deadlineSlack(patience)
		s.pace.note(a)
		s.health.note(ctx, op, c.Key, a)
	}()
	if batched != nil && batched.done() && batched.err == nil {
		a.Grant = batched.grant
		return a
	}
	deadline := a.sent.Add(limit)
	callers, isCallers := ctx.Deadline()
	if isCallers = isCallers && callers.Before(deadline); isCallers {
		deadline = callers
	}
	if !ends.IsZero() {
		c.Expiry = untilEnd(ends)
		a.expiry, a.weakest = c.Expiry, c.Expiry
	}
	silent := time.Until(a.sent.Add(deadline.Sub(a.sent) / repeatFraction)) // until a second attempt
	here := batched
	if limit := min(silent, longestHere); batched == nil && s.mayAskHere(op, limit) {
		g, err := s.askHere(ctx, op, c, limit, send)
		if err == nil {
			a.Grant = g
			return a
		}
		here = &attempt{key: c.Key, returned: isReturned, err: err}
		silent = limit - time.Since(a.sent)
	}

	x := newExchange(ctx, s, op, deadline, send, abandoned)
	defer x.leave()
	first := here
	if first == nil {
		first = x.send(c)
	}
	attempts := []*attempt{first}
	timeout := time.NewTimer(time.Until(a.sent.Add(limit))) // not until the deadline: if that is the caller's, ctx says so
	defer timeout.Stop()
	var silence <-chan time.Time
	if op != OpNotify { // its connection is the handler's to watch, and a second subscription would have to be ended
		timer := time.NewTimer(silent)
		defer timer.Stop()
		silence = timer.C
	}
	var answered *attempt
	firstDone, secondDone := first.returned, (chan struct{})(nil)
	if here != batched && silent <= 0 {
		firstDone = nil // its error says no more than that it was silent
	}
	for answered == nil && (firstDone != nil || secondDone != nil || silence != nil && silent <= 0) {
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
			silence = nil
			if abandoned.refusal(op, c.Key) != nil {
				continue
			}
			c.Repeated, a.repeated = true, true
			if !ends.IsZero() {
				c.Expiry = untilEnd(ends)
				a.weakest = c.Expiry
			}
			second := x.send(c)
			attempts, secondDone = append(attempts, second), second.returned
		case <-timeout.C:
			firstDone, secondDone, silence = nil, nil, nil
		case <-ctx.Done():
			firstDone, secondDone, silence = nil, nil, nil
		}
	}

	var err error
	for _, t := range attempts {
		switch {
		case !t.done():
			a.left = append(a.left, t)
		case t.err != nil:
			a.failed, err = a.failed || !isNotSent(t.err), moreTelling(err, t.err)
		case answered == nil: // at the last moment: that is better than not knowing
			answered = t
		case t.grant.Held != answered.grant.Held:
			a.failed = true // which of them was carried out last is not known
		}
	}
	if slack := deadlineSlack(deadline.Sub(a.sent)); isCallers && answered == nil && time.Until(deadline) <= slack {
		// And not until ctx is done: one may have a deadline and not end with it. But a busy machine ends it late.
		retry.Sleep(ctx, time.Until(deadline)+lateEnd)
	}
	if errors.Is(ctx.Err(), context.Canceled) { // the caller does not want the answer any more
		x.cancel()
	}
	x.abandon(a.left, answered != nil)
	if answered != nil {
		a.Grant = answered.grant
		return a
	}
	a.calledOff = ctx.Err() != nil
	switch {
	case a.calledOff && err == nil:
		err = ctx.Err()
	case err == nil: // no attempt has returned: they could only say this
		err = context.DeadlineExceeded
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
	op        Op
	request   func(context.Context, Claim) (Grant, error)
	abandoned *abandonedCalls
	deadline  time.Time

	ctx    callContext
	cancel context.CancelFunc
	open   atomic.Int32 // the attempts that have not returned, and the call itself: the last one to leave ends ctx
}

// linger is how long a handler may go on with a call that its caller has given up. A statement that is cancelled takes its
// connection with it, and the next one begins on a cold connection and is as slow: a store whose first statement takes
// longer than a call may would never be used.
const linger = 5 * time.Second

// callContext has the values of the caller's context, but not its end. Its deadline is the call's, after which a handler
// sends nothing any more; it is done when the caller cancels its context, or some time after that deadline.
type callContext struct {
	context.Context
	deadline time.Time
}

func (c callContext) Deadline() (time.Time, bool) { return c.deadline, true }

func newExchange(ctx context.Context, s *store, op Op, deadline time.Time, send func(context.Context, Claim) (Grant, error), abandoned *abandonedCalls) *exchange {
	x := &exchange{store: s, op: op, request: send, abandoned: abandoned, deadline: deadline}
	ctx, x.cancel = context.WithCancel(context.WithoutCancel(ctx))
	x.ctx = callContext{ctx, deadline}
	x.open.Store(1)
	return x
}

// An attempt runs until its handler returns or its call abandons it.
const (
	attemptRunning int32 = iota
	attemptReturned
	attemptAbandoned
)

// attempt is one request of a call, on a goroutine of its own.
type attempt struct {
	key      string
	state    atomic.Int32
	returned chan struct{} // closed when the handler has returned: then the fields below may be read
	grant    Grant
	err      error

	// If a batch has made it: before it left, and how long the call may take of which it is the first one.
	sent  time.Time
	limit time.Duration
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
	t := &attempt{key: c.Key, returned: make(chan struct{}), err: errNoReply}
	x.open.Add(1)
	go func() {
		defer x.leave()
		defer func() {
			close(t.returned)
			if !t.state.CompareAndSwap(attemptRunning, attemptReturned) {
				x.abandoned.add(t.key, -1)
			}
		}()
		t.grant, t.err = x.store.ask(x.ctx, x.op, c, x.request)
	}()
	return t
}

// ask calls the handler. A panic becomes an error.
func (s *store) ask(ctx context.Context, op Op, c Claim, request func(context.Context, Claim) (Grant, error)) (g Grant, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errPanicked, v)
			s.events.emit(ctx, Event{Kind: KindPanic, Store: s.name, Op: op, Key: c.Key,
				Err: fmt.Errorf("loki: the %s handler panicked: %s\n%s", s.name, oneLine(fmt.Errorf("%v", v)), debug.Stack())})
		}
	}()
	if request == nil {
		g, err = s.request(ctx, op, c)
	} else {
		g, err = request(ctx, c)
	}
	if err != nil {
		_ = err.Error() // here, where a panic is the handler's: that of a nil pointer in an error, for example
	}
	return g, err
}

// abandon gives up what has not returned when its call is over. An attempt that lost to the other one has its time still:
// it counts as abandoned from its deadline on, since a store that is only slow leaves one behind for each of its callers.
func (x *exchange) abandon(left []*attempt, answered bool) {
	if len(left) == 0 {
		return
	}
	count := func() {
		for _, t := range left {
			x.abandoned.add(t.key, 1) // before the swap, so that the goroutine cannot subtract what has not been added
			if !t.state.CompareAndSwap(attemptRunning, attemptAbandoned) {
				x.abandoned.add(t.key, -1)
			}
		}
	}
	remaining := time.Until(x.deadline)
	if answered && remaining > 0 {
		time.AfterFunc(remaining, count)
	} else {
		count() // now, so that the next call counts it
	}
	end := x.abandoned.lingers(left[0].key, x.cancel)
	go func() {
		defer end()
		timer := time.NewTimer(remaining + linger)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-x.store.closing:
		case <-x.ctx.Done():
		}
		x.cancel()
	}()
}

// leave ends ctx when no attempt needs it any more.
func (x *exchange) leave() {
	if x.open.Add(-1) == 0 {
		x.cancel()
	}
}

// The bounds on abandoned calls, which bound the goroutines that a handler costs which does not return. They are counted
// for each key: a store may be well but for one shard, whose keys must not take the others with them.
const (
	maxAbandonedOfKey = 16   // of one key
	manyAbandoned     = 256  // of all keys: from here on, no more of a key that has one, but renewals and releases
	maxAbandoned      = 4096 // of all keys

	// maxLingering is how many calls about one key linger: the oldest one, whose connection will be ready first, and the
	// latest, in case that the oldest one's is dead.
	maxLingering = 2
)

// abandonedCalls counts the calls of one store whose time was up and that have not returned since.
type abandonedCalls struct {
	mu    sync.Mutex
	total int
	keys  map[string]*abandonedOfKey
}

type abandonedOfKey struct {
	calls     int
	lingering []*context.CancelFunc // the oldest first
}

// of is called with mu held.
func (c *abandonedCalls) of(key string) *abandonedOfKey {
	k := c.keys[key]
	if k == nil {
		if c.keys == nil {
			c.keys = make(map[string]*abandonedOfKey)
		}
		k = &abandonedOfKey{}
		c.keys[key] = k
	}
	return k
}

// tidy is called with mu held.
func (c *abandonedCalls) tidy(key string, k *abandonedOfKey) {
	if k.calls == 0 && len(k.lingering) == 0 && c.keys[key] == k {
		delete(c.keys, key)
	}
}

func (c *abandonedCalls) add(key string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of(key)
	c.total += n
	k.calls += n
	c.tidy(key, k)
}

// lingers notes that a call about key goes on although its caller has given it up. It cancels one of too many: not the oldest,
// or where calls are short, each would be cancelled before its connection is ready. The caller calls end when the call does not
// go on any more.
func (c *abandonedCalls) lingers(key string, cancel context.CancelFunc) (end func()) {
	c.mu.Lock()
	k := c.of(key)
	k.lingering = append(k.lingering, &cancel)
	var tooMany context.CancelFunc
	if len(k.lingering) > maxLingering {
		tooMany = *k.lingering[1]
		k.lingering = slices.Delete(k.lingering, 1, 2)
	}
	c.mu.Unlock()
	if tooMany != nil {
		tooMany()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i := slices.Index(k.lingering, &cancel); i >= 0 {
			k.lingering = slices.Delete(k.lingering, i, i+1)
		}
		c.tidy(key, k)
	}
}

// refusal returns why a call about key is not made, nil if it is.
func (c *abandonedCalls) refusal(op Op, key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := 0
	if k := c.keys[key]; k != nil {
		of = k.calls
	}
	switch {
	case of >= maxAbandonedOfKey || c.total >= manyAbandoned && of > 0 && op != OpExtend && op != OpRelease: // a held lock is not lost for that
		return NotSent(fmt.Errorf("not asked: %d earlier calls for this key have not returned", of))
	case c.total >= maxAbandoned:
		return NotSent(fmt.Errorf("not asked: %d earlier calls have not returned", c.total))
	}
	return nil
}
