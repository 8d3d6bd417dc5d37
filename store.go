package loki

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Store names one of the two stores of a Locker, in errors, events and outcomes.
type Store string

// The stores.
const (
	Primary   Store = "primary"
	Secondary Store = "secondary"
)

// Op names what a store was asked to do, in errors and events.
type Op string

// The operations. What one does is documented at the method of the handler that carries it out.
const (
	OpLock    Op = "lock"    // [LockHandler] Lock, or [Granter] Grant
	OpExtend  Op = "extend"  // [Extender]
	OpRelease Op = "release" // [LockHandler] Release, or [Releaser]
	OpNotify  Op = "notify"  // [Notifier]
	OpInspect Op = "inspect" // [Inspector]

	opProbe Op = "probe" // the circuit breaker's: a Lock and a Release
)

// store is one handler and what surrounds every call of it: a deadline that holds whatever the handler does, a second
// attempt where the first one is silent, a panic turned into an error, a name on the error. It decides nothing.
type store struct {
	name    Store
	timeout time.Duration
	events  *events
	health  *health

	handler  LockHandler
	granter  Granter       // nil where the handler is none
	extender Extender      // nil where the handler is none
	batch    BatchExtender // nil where the handler is none
	releaser Releaser      // nil where the handler is none
	notifier Notifier      // nil where the handler is none
	bounds   bool          // the handler is a Bounder

	pace pace // of its latest answers

	// These are set when the extender, the batch extender or the releaser turned out to be a decorator around a handler that
	// is none.
	noExtend, noBatch, noReport atomic.Bool

	// Abandoned subscriptions and probes do not keep locks from being acquired: they count apart.
	abandoned, abandonedNotify, abandonedProbe abandonedCalls

	closing chan struct{} // closed when Close has no more calls to wait for: then abandoned ones are cancelled
	close   func()

	background *reconciler
	probeName  string // tells this Locker's probes from others'
}

func newStore(name Store, h LockHandler, timeout time.Duration, events *events) *store {
	if h == nil {
		return nil
	}
	s := &store{name: name, timeout: timeout, events: events, handler: h, probeName: newToken()[:8]}
	s.pace.since = time.Now()
	s.pace.answered.Store(-1)
	s.health = newHealth(s)
	s.closing = make(chan struct{})
	s.close = sync.OnceFunc(func() { close(s.closing) })
	s.granter, _ = h.(Granter)
	s.extender, _ = h.(Extender)
	s.batch, _ = h.(BatchExtender)
	s.releaser, _ = h.(Releaser)
	s.notifier, _ = h.(Notifier)
	if b, ok := h.(Bounder); ok {
		s.bounds = b.Bounds()
	}
	return s
}

// lock requests c, until ends or, if that is zero, for c.Expiry.
func (s *store) lock(ctx context.Context, c Claim, ends time.Time, limit time.Duration) answer {
	a := s.call(ctx, OpLock, c, ends, limit, nil, nil)
	a.couldRecord = true
	if a.err == nil && a.Contended && s.name == Secondary { // not that another holder has a record
		a.err = s.wrap(OpLock, c, Unavailable(errContended))
	}
	return a
}

// extend extends c, until ends or, if that is zero, for c.Expiry. Without an Extender it is a Lock, which records a claim
// anew that the store has forgotten: callers extend within the lease's validity only, where that harms no other instance. A
// batch may have made the first attempt.
func (s *store) extend(ctx context.Context, c Claim, ends time.Time, limit time.Duration, batched *attempt) answer {
	a := s.call(ctx, OpExtend, c, ends, limit, nil, batched)
	a.couldRecord = !s.extends()
	return a
}

// release removes c if it holds. The answer's Held is whether it did, where the store reports that.
func (s *store) release(ctx context.Context, c Claim, limit time.Duration) answer {
	a := s.call(ctx, OpRelease, c, time.Time{}, limit, nil, nil)
	a.reports = s.reports()
	return a
}

// request sends c to the handler, with the capability that it has for op.
func (s *store) request(ctx context.Context, op Op, c Claim) (Grant, error) {
	switch op {
	case OpExtend:
		if s.extends() {
			held, err := s.extender.Extend(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return Grant{Held: held}, err
			}
			s.noExtend.Store(true)
		}
	case OpRelease:
		if s.reports() {
			held, err := s.releaser.ReleaseHeld(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return Grant{Held: held}, err
			}
			s.noReport.Store(true)
		}
		return Grant{}, s.handler.Release(ctx, c)
	default:
		if s.granter != nil {
			g, err := s.granter.Grant(ctx, c)
			if !errors.Is(err, errors.ErrUnsupported) {
				return g, err
			}
		}
	}
	held, err := s.handler.Lock(ctx, c)
	return Grant{Held: held}, err
}

// extends reports whether extend only extends.
func (s *store) extends() bool { return s.extender != nil && !s.noExtend.Load() }

// extendsAll reports whether many claims can be extended with one call.
func (s *store) extendsAll() bool { return s.batch != nil && !s.noBatch.Load() && s.extends() }

// extendAll extends claims with one call of the handler, and returns an answer for each.
func (s *store) extendAll(ctx context.Context, claims []Claim) (answers []Extended, err error) {
	_, err = s.ask(ctx, OpExtend, claims[0], func(ctx context.Context, _ Claim) (_ Grant, err error) {
		answers, err = s.batch.ExtendAll(ctx, claims)
		for _, a := range answers {
			if a.Err != nil {
				_ = a.Err.Error() // see ask
			}
		}
		return Grant{}, err
	})
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		s.noBatch.Store(true)
		err = NotSent(err)
	case err == nil && len(answers) != len(claims):
		err = fmt.Errorf("the handler has returned %d answers to %d claims", len(answers), len(claims))
	}
	return answers, err
}

// reports reports whether a release says what it found.
func (s *store) reports() bool { return s.releaser != nil && !s.noReport.Load() }

// inspect reads who holds key.
func (s *store) inspect(ctx context.Context, key string, limit time.Duration) answer {
	return s.call(ctx, OpInspect, Claim{Key: key}, time.Time{}, limit, func(ctx context.Context, c Claim) (Grant, error) {
		inspector, ok := s.handler.(Inspector)
		if !ok {
			return Grant{}, errors.ErrUnsupported
		}
		h, held, err := inspector.Inspect(ctx, c.Key)
		return Grant{Held: held, HeldBy: h}, err
	}, nil)
}

// probe finds out whether the store would grant key: it acquires and releases a lock of its own beside it. Only a grant, or
// another instance's probe in its place, proves that: a server that is out of memory, or has too few replicas, answers
// releases and refuses grants.
func (s *store) probe(ctx context.Context, key string) {
	s.call(ctx, opProbe, Claim{Key: key}, time.Time{}, s.timeout, func(ctx context.Context, _ Claim) (Grant, error) {
		c := Claim{Key: s.probeKey(key), Token: newToken(), Expiry: probeExpiry, Quiet: true, Unused: true}
		held, err := s.handler.Lock(ctx, c)
		if held {
			err = s.handler.Release(ctx, c)
		}
		return Grant{Held: true}, err
	}, nil)
}

const (
	// probeSuffix is what follows the key of a lock in that of its probe, before the name of the Locker: Lockers that probe
	// at the same time must not contend, which splits the votes of a quorum. No lock, and no completion record, has such a
	// key, since "@" is encoded within the parts of a key.
	probeSuffix = "@@probe-"

	// probeExpiry is how long a probe stays in a store whose connection breaks before it is released.
	probeExpiry = time.Second
)

func (s *store) probeKey(key string) string {
	suffix := probeSuffix + s.probeName
	if len(key)+len(suffix) > MaxKeyLength {
		return suffix
	}
	return key + suffix
}

// subscribe has the notifier listen to key until the subscription is stopped, and takes no longer than limit to begin.
// Without a notifier that can, the subscription has no wake-ups, and waiting polls. It returns nil if ctx or the limit ended
// the call: whether the notifier can listen is not known then.
func (s *store) subscribe(ctx context.Context, key string, limit time.Duration) *subscription {
	n := &subscription{stop: func() {}, asked: time.Now()}
	if s.notifier == nil {
		return n
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx)) // longer than this waiter, who may be the first of many
	opened := make(chan (<-chan struct{}), 1)
	a := s.call(ctx, OpNotify, Claim{Key: key}, time.Time{}, limit, func(context.Context, Claim) (Grant, error) {
		frees, err := s.notifier.Notify(life, key)
		opened <- frees
		return Grant{}, err
	}, nil)
	switch {
	case a.err == nil:
		n.wakeUps, n.stop = <-opened, stop
		return n
	case ctx.Err() != nil || len(a.left) > 0 && limit < s.timeout:
		n = nil
	}
	stop()
	return n
}

// abandonedBy returns the count that op's abandoned calls belong to.
func (s *store) abandonedBy(op Op) *abandonedCalls {
	switch op {
	case OpNotify:
		return &s.abandonedNotify
	case opProbe:
		return &s.abandonedProbe
	}
	return &s.abandoned
}

func (s *store) wrap(op Op, c Claim, err error) error {
	return &HandlerError{Store: s.name, Op: op, Key: c.Key, Err: err}
}
