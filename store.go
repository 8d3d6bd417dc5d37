package loki

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// MaxAbandonedCalls is how many calls of one handler may be left behind: calls whose time was up and that have not
// returned since. When there are so many, no further call is made and the store counts as unavailable at once, until
// some have returned. It bounds the goroutines that a handler which ignores its context can cost to this number and
// those that were under way when it was reached.
const MaxAbandonedCalls = 256

const (
	primaryName   = "primary"
	secondaryName = "secondary"

	opLock    = "lock"
	opExtend  = "extend"
	opRelease = "release"
	opNotify  = "notify"
)

// store is one handler and what surrounds every call of it: a deadline that holds whatever the handler does, a panic
// turned into an error, a name on the error. It decides nothing.
type store struct {
	name    string
	timeout time.Duration
	events  *observer

	handler  LockHandler
	granter  Granter  // nil where the handler is none
	extender Extender // nil where the handler is none
	notifier Notifier // nil where the handler is none

	// noExtend is set when the extender turned out to be a decorator around a handler that is none.
	noExtend  atomic.Bool
	abandoned atomic.Int64
	deaf      atomic.Int64 // calls of the notifier that were left behind: they must not keep locks from being asked for
}

func newStore(name string, h LockHandler, timeout, fallbackTimeout time.Duration, events *observer) *store {
	if h == nil {
		return nil
	}
	if timeout == 0 {
		timeout = fallbackTimeout
	}
	s := &store{name: name, timeout: timeout, events: events, handler: h}
	s.granter, _ = h.(Granter)
	s.extender, _ = h.(Extender)
	s.notifier, _ = h.(Notifier)
	return s
}

// answer is what a store said, or that it did not.
type answer struct {
	Grant
	sent   time.Time     // before the request, on the monotonic clock: what a lease is counted from
	expiry time.Duration // for how long the claim was asked for
	err    error         // nil, or a *HandlerError: the outcome is unknown

	// left, if not nil, is closed when the call that was left behind has returned. Until then it may still take
	// effect.
	left <-chan struct{}

	// calledOff says that ctx ended the call: the store's silence says nothing about it.
	calledOff bool

	// records says that the request could record a claim that was not there before.
	records bool
}

// lock asks the store to record c, in full where it can.
func (s *store) lock(ctx context.Context, c Claim, limit time.Duration) answer {
	a := s.call(ctx, opLock, c, limit, func(ctx context.Context) (Grant, error) {
		if s.granter != nil {
			g, err := s.granter.Grant(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return g, err
			}
		}
		held, err := s.handler.Lock(ctx, c)
		return Grant{Held: held}, err
	})
	a.records = true
	return a
}

// extend renews c. Without an Extender it is a Lock, which takes a claim anew that the store has forgotten: the
// callers ask inside the lease's window only, where that harms nobody.
func (s *store) extend(ctx context.Context, c Claim, limit time.Duration) answer {
	a := s.call(ctx, opExtend, c, limit, func(ctx context.Context) (Grant, error) {
		if s.extends() {
			held, err := s.extender.Extend(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return Grant{Held: held}, err
			}
			s.noExtend.Store(true)
		}
		held, err := s.handler.Lock(ctx, c)
		return Grant{Held: held}, err
	})
	a.records = !s.extends()
	return a
}

// extends reports whether extend can never take a claim anew.
func (s *store) extends() bool { return s.extender != nil && !s.noExtend.Load() }

// release compares and deletes.
func (s *store) release(ctx context.Context, c Claim, limit time.Duration) answer {
	return s.call(ctx, opRelease, c, limit, func(ctx context.Context) (Grant, error) {
		return Grant{}, s.handler.Release(ctx, c)
	})
}

// listen has the notifier listen to key until the news are stopped, and takes no longer than limit to ask for that.
// Where there is none, or none that can, the news never tell, and waiting polls. It returns nil if it was ctx or the limit
// that ended the call: then nobody knows whether it can.
func (s *store) listen(ctx context.Context, key string, limit time.Duration) *news {
	n := &news{stop: func() {}, asked: time.Now()}
	if s.notifier == nil {
		return n
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx)) // longer than this waiter, who may be the first of many
	opened := make(chan (<-chan struct{}), 1)
	a := s.call(ctx, opNotify, Claim{Key: key}, limit, func(context.Context) (Grant, error) {
		frees, err := s.notifier.Notify(life, key)
		opened <- frees
		return Grant{}, err
	})
	switch {
	case a.err == nil:
		n.frees, n.stop = <-opened, stop
		return n
	case ctx.Err() != nil || a.left != nil && limit < s.timeout:
		n = nil
	}
	stop()
	return n
}

const (
	callRunning int32 = iota
	callReturned
	callAbandoned
)

// call runs f on a goroutine of its own and waits for it as long as ctx and the smaller of limit and the store's
// timeout allow. Only a goroutine can be left behind, and a handler may ignore its ctx: go-redis does, as its clients
// are configured by default.
func (s *store) call(ctx context.Context, op string, c Claim, limit time.Duration, f func(context.Context) (Grant, error)) answer {
	a := answer{sent: time.Now(), expiry: c.Expiry}
	abandoned := &s.abandoned
	if op == opNotify {
		abandoned = &s.deaf
	}
	if abandoned.Load() >= MaxAbandonedCalls {
		a.err = s.wrap(op, c, Unavailable(fmt.Errorf("not asked: %d earlier calls have not returned", MaxAbandonedCalls)))
		return a
	}
	limit = min(limit, s.timeout)
	if limit <= 0 {
		a.err = s.wrap(op, c, Unavailable(fmt.Errorf("not asked, no time left: %w", context.DeadlineExceeded)))
		return a
	}
	callCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	r := &reply{returned: make(chan struct{}), err: errNoReply}
	go func() {
		defer func() {
			if v := recover(); v != nil {
				r.err = fmt.Errorf("the handler panicked: %v", v)
				s.events.emit(ctx, Event{Kind: KindPanic, Handler: s.name, Op: op, Key: c.Key,
					Err: fmt.Errorf("loki: the %s handler panicked: %v\n%s", s.name, v, debug.Stack())})
			}
			close(r.returned)
			if !r.state.CompareAndSwap(callRunning, callReturned) {
				abandoned.Add(-1)
			}
		}()
		r.grant, r.err = f(callCtx)
	}()

	select {
	case <-r.returned:
	case <-callCtx.Done():
		// Counted before the swap, so that the goroutine cannot subtract what has not been added.
		abandoned.Add(1)
		if r.state.CompareAndSwap(callRunning, callAbandoned) {
			a.left = r.returned
			if a.calledOff = ctx.Err() != nil; a.calledOff {
				a.err = s.wrap(op, c, ctx.Err())
			} else {
				a.err = s.wrap(op, c, Unavailable(fmt.Errorf("no answer within %v: %w", limit.Round(time.Millisecond), context.DeadlineExceeded)))
			}
			return a
		}
		abandoned.Add(-1) // it answered at the last moment: that is better than not knowing
	}
	if r.err != nil {
		a.err, a.calledOff = s.wrap(op, c, r.err), ctx.Err() != nil
		return a
	}
	a.Grant = r.grant
	return a
}

// reply is what a handler returns, on the goroutine of the call. Who has seen returned closed may read it.
type reply struct {
	returned chan struct{}
	state    atomic.Int32
	grant    Grant
	err      error
}

var errNoReply = errors.New("the handler ended its goroutine instead of returning")

func (s *store) wrap(op string, c Claim, err error) error {
	return &HandlerError{Handler: s.name, Op: op, Key: c.Key, Err: err}
}
