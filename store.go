package loki

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// MaxAbandonedCalls is how many calls of one handler may be abandoned: calls whose time was up and that have not returned
// since. When there are so many, no further call is made and the store counts as unavailable at once, until some have
// returned. It bounds the goroutines that a handler which ignores its context can cost to this number and those that were
// under way when it was reached. Calls that only find out whether the store is back are counted apart, as are subscriptions.
const MaxAbandonedCalls = 256

const (
	primaryName   = "primary"
	secondaryName = "secondary"

	opLock    = "lock"
	opExtend  = "extend"
	opRelease = "release"
	opNotify  = "notify"
	opProbe   = "probe" // the breaker's: a release of what nobody holds
)

// store is one handler and what surrounds every call of it: a deadline that holds whatever the handler does, a second
// attempt where the first one is silent, a panic turned into an error, a name on the error. It decides nothing.
type store struct {
	name    string
	timeout time.Duration
	events  *observer
	health  *health

	handler  LockHandler
	granter  Granter  // nil where the handler is none
	extender Extender // nil where the handler is none
	releaser Releaser // nil where the handler is none
	notifier Notifier // nil where the handler is none

	// noExtend and noReport are set when the extender, or the releaser, turned out to be a decorator around a handler that
	// is none.
	noExtend  atomic.Bool
	noReport  atomic.Bool
	abandoned atomic.Int64
	deaf      atomic.Int64 // calls of the notifier that were abandoned: they must not keep locks from being asked for
	probing   atomic.Int64 // abandoned probes, likewise
}

func newStore(name string, h LockHandler, timeout, fallbackTimeout time.Duration, events *observer) *store {
	if h == nil {
		return nil
	}
	if timeout == 0 {
		timeout = fallbackTimeout
	}
	s := &store{name: name, timeout: timeout, events: events, handler: h}
	s.health = newHealth(s)
	s.granter, _ = h.(Granter)
	s.extender, _ = h.(Extender)
	s.releaser, _ = h.(Releaser)
	s.notifier, _ = h.(Notifier)
	return s
}

// lock asks the store to record c, in full where it can.
func (s *store) lock(ctx context.Context, c Claim, limit time.Duration) answer {
	return s.lockUntil(ctx, c, time.Time{}, limit)
}

// lockUntil asks the store to record c until ends, or for c.Expiry if ends is zero.
func (s *store) lockUntil(ctx context.Context, c Claim, ends time.Time, limit time.Duration) answer {
	a := s.call(ctx, opLock, c, ends, limit, func(ctx context.Context, c Claim) (Grant, error) {
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
	a := s.call(ctx, opExtend, c, time.Time{}, limit, func(ctx context.Context, c Claim) (Grant, error) {
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

// release compares and deletes. The answer's Held is whether the claim was held until then, where the store reports it.
func (s *store) release(ctx context.Context, c Claim, limit time.Duration) answer {
	a := s.call(ctx, opRelease, c, time.Time{}, limit, func(ctx context.Context, c Claim) (Grant, error) {
		if s.reports() {
			held, err := s.releaser.ReleaseHeld(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return Grant{Held: held}, err
			}
			s.noReport.Store(true)
		}
		return Grant{}, s.handler.Release(ctx, c)
	})
	a.reports = s.reports()
	return a
}

// reports reports whether a release says what it found.
func (s *store) reports() bool { return s.releaser != nil && !s.noReport.Load() }

// probe finds out whether the store answers, with a release of a claim that nobody holds, which changes nothing.
func (s *store) probe(ctx context.Context, key string) {
	c := Claim{Key: key, Token: newToken(), Expiry: MinExpiry}
	s.call(ctx, opProbe, c, time.Time{}, s.timeout, func(ctx context.Context, c Claim) (Grant, error) {
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
	a := s.call(ctx, opNotify, Claim{Key: key}, time.Time{}, limit, func(context.Context, Claim) (Grant, error) {
		frees, err := s.notifier.Notify(life, key)
		opened <- frees
		return Grant{}, err
	})
	switch {
	case a.err == nil:
		n.frees, n.stop = <-opened, stop
		return n
	case ctx.Err() != nil || len(a.left) > 0 && limit < s.timeout:
		n = nil
	}
	stop()
	return n
}

// abandonedBy is the count of the abandoned calls among which op's belong.
func (s *store) abandonedBy(op string) *atomic.Int64 {
	switch op {
	case opNotify:
		return &s.deaf
	case opProbe:
		return &s.probing
	}
	return &s.abandoned
}

func (s *store) wrap(op string, c Claim, err error) error {
	return &HandlerError{Handler: s.name, Op: op, Key: c.Key, Err: err}
}
