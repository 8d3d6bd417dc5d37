package loki

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Locker runs closures under a lock that instances on many machines share. Make one with [Builder.Build] or [New] and
// keep it as long as the service runs; it may be used by any number of goroutines at once. It closes nothing that it
// did not open: the handlers and their clients belong to the caller.
type Locker struct {
	serviceKey string
	mode       MirrorMode
	holder     string
	primary    *store
	secondary  *store // nil if there is none
	events     *observer

	gate            *gate
	mirror          *mirror
	doubts          doubts
	calls           tally // running calls and closures
	background      tally // first attempts that somebody may want to wait for
	pendingReleases atomic.Int64

	mu      sync.Mutex // guards what follows
	closed  bool
	closing chan struct{}       // closed when closed becomes true
	leases  map[*Lease]struct{} // from Acquire, which Close has to end
}

var (
	errNilContext = errors.New("loki: the context is nil: pass context.Background() if there is no other")
	errNoLocker   = errors.New("loki: this Locker was not made by Build or New")
	errOccurrence = errors.New("loki: WithOccurrence is for closures: use ExecuteWithinLock, which can tell whether the run succeeded")
	errNilClosure = errors.New("loki: there is nothing to run: fn is nil")
)

// New returns a Locker made of c, or an error that joins a sentence for every mistake in it. Nothing is sent to the
// stores: one that is down does not keep a service from starting.
func New(c Config) (*Locker, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	events := &observer{observe: c.Observer}
	l := &Locker{
		serviceKey: encodePart(c.ServiceKey),
		mode:       c.Mirror,
		holder:     cmp.Or(c.Holder, processName()),
		primary:    newStore(primaryName, c.Primary, c.PrimaryTimeout, DefaultPrimaryTimeout, events),
		secondary:  newStore(secondaryName, c.Secondary, c.SecondaryTimeout, DefaultSecondaryTimeout, events),
		events:     events,
		gate:       newGate(),
		mirror:     newMirror(),
		closing:    make(chan struct{}),
		leases:     make(map[*Lease]struct{}),
	}
	if l.secondary != nil {
		p, s := l.primary.health, l.secondary.health
		p.other, s.other, s.required = s, p, l.mode == MirrorSync
	}
	return l, nil
}

// ExecuteWithinLock runs fn while holding the lock, on the caller's goroutine, at most once. If the lock is held
// elsewhere fn is skipped and the error matches [ErrBusy]; the package comment has the table of all outcomes.
//
// expiry, between [MinExpiry] and [MaxExpiry], is how long others wait after a crash of this process, not how long fn
// may run: the lock is renewed while fn runs. fn's context ends, with a cause that matches [ErrLockLost], the moment
// the lock is lost; it ends like ctx when ctx does, and then the lock is no longer renewed.
//
// When fn has returned, or has panicked or called runtime.Goexit, the lock is released. A panic goes on; nothing
// recovers it.
func (l *Locker) ExecuteWithinLock(ctx context.Context, expiry time.Duration, fn func(context.Context) error, opts ...Option) (err error) {
	if fn == nil {
		return errNilClosure
	}
	ls, r, o, err := l.acquire(ctx, expiry, opts, true)
	if err != nil {
		return err
	}
	defer l.calls.add(-1)
	if o.outcome != nil {
		o.outcome.Ran = true
	}
	ls.running.Store(true)
	defer ls.running.Store(false)
	failed := true // unless fn returns and says otherwise
	// Deferred, not called after fn: also a panic or a Goexit gives the lock back.
	defer func() {
		ls.mu.Lock()
		ls.failed = failed
		ls.mu.Unlock()
		if ls.finish(nil) {
			l.settle(ls)
		}
		<-ls.settled
		ls.mu.Lock()
		lost := ls.lost
		ls.mu.Unlock()
		if lost != nil {
			err = lost.withFnError(err)
		}
	}()
	err = fn(ls.ctx)
	failed = err != nil
	if err == nil && r.record != "" { // while the lock is still held
		l.recordOccurrence(ls, r.record, r.keep)
	}
	return err
}

// Execute is [Locker.ExecuteWithinLock] for a fn with a result. Where the error says that fn did not run, the result
// is zero; else it is what fn returned.
func Execute[T any](ctx context.Context, l *Locker, expiry time.Duration, fn func(context.Context) (T, error), opts ...Option) (T, error) {
	var result T
	if fn == nil {
		return result, errNilClosure
	}
	err := l.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) (err error) {
		result, err = fn(ctx)
		return err
	}, opts...)
	return result, err
}

// Acquire acquires the lock without a closure, for code that cannot be one, such as the lock interface of a scheduler. It
// returns the errors of ExecuteWithinLock that say "fn did not run". The lease is renewed until [Lease.Release] is
// called, ctx ends, it is lost, or the Locker is closed: the caller of Acquire calls Release.
//
// ctx is the life of the lease, not only of the call: when it ends, the lease is renewed no longer, and another instance
// may acquire the lock while work that does not watch [Lease.Context] goes on. Many schedulers end the context that they
// hand over as soon as they are told to stop, and only then wait for the job: there pass [context.WithoutCancel](ctx), and
// end the lease with Release. Call [Locker.Close] before the process exits: what a failed acquisition left is released then.
func (l *Locker) Acquire(ctx context.Context, expiry time.Duration, opts ...Option) (*Lease, error) {
	ls, _, o, err := l.acquire(ctx, expiry, opts, false)
	if err != nil {
		return nil, err
	}
	defer l.calls.add(-1)
	l.mu.Lock()
	closed := l.closed
	l.leases[ls] = struct{}{}
	l.mu.Unlock()
	if closed {
		if ls.finish(ErrClosed) {
			l.settleLater(ls)
		}
		l.forget(ls)
		if o.outcome != nil {
			o.outcome.Store, o.outcome.Fence = "", 0
		}
		return nil, ErrClosed
	}
	if o.outcome != nil {
		o.outcome.Ran = true
	}
	ls.mu.Lock()
	ended := ls.ended
	ls.mu.Unlock()
	if ended { // lost before it was on the list
		l.forget(ls)
	}
	return ls, nil
}

// acquire is what every entry point does first. If it returns a lease, the caller takes one from l.calls when done.
func (l *Locker) acquire(ctx context.Context, expiry time.Duration, opts []Option, closure bool) (*Lease, request, options, error) {
	start := time.Now()
	if l == nil || l.primary == nil {
		return nil, request{}, options{}, errNoLocker
	}
	var r request
	o, err := newOptions(opts)
	if o.outcome != nil {
		*o.outcome = Outcome{}
	}
	if err != nil {
		return nil, r, o, err
	}
	if ctx == nil {
		return nil, r, o, errNilContext
	}
	if err := validateExpiry(expiry); err != nil {
		return nil, r, o, err
	}
	r = request{key: l.serviceKey, expiry: expiry, minHold: o.minHold, renewal: !o.noRenewal, closure: closure, rowFirst: o.hasOccurrence}
	if o.hasResource {
		r.key += "/" + encodePart(o.resource)
		if err := validateLength("the key", r.key); err != nil {
			return nil, r, o, err
		}
	}
	if o.hasOccurrence {
		if !closure {
			return nil, r, o, errOccurrence
		}
		r.record, r.keep = r.key+"@"+encodePart(o.occurrence), o.keep
		if err := validateLength("the key", r.record); err != nil {
			return nil, r, o, err
		}
	}
	if o.wait > 0 && o.wait <= MaxExpiry {
		r.limit = start.Add(o.wait)
	}
	if !l.enter() {
		return nil, r, o, ErrClosed
	}
	ls, err := l.take(ctx, r, o.wait > 0)
	if err == nil && r.record != "" {
		if err = l.checkOccurrence(ls, r); err != nil {
			ls.giveBack()
			ls = nil
		}
	}
	if o.outcome != nil {
		o.outcome.Key, o.outcome.Waited = r.key, time.Since(start)
		if ls != nil {
			o.outcome.Store, o.outcome.Fence = ls.store, ls.claim.Fence
		}
	}
	l.report(ctx, r.key, ls, start, err)
	if err != nil {
		l.calls.add(-1)
		return nil, r, o, err
	}
	return ls, r, o, nil
}

// take gets the lock, waiting for it if wait says so.
func (l *Locker) take(ctx context.Context, r request, wait bool) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, newEndedError(ctx, r.key)
	}
	if outer, ok := LeaseFromContext(ctx); ok && outer.holds(l, r.key) {
		return nil, &BusyError{Key: r.key, Holder: Holder{ID: l.holder}, Nested: true}
	}
	if wait {
		return l.wait(ctx, r)
	}
	if l.gate.busy(r.key) {
		return nil, &BusyError{Key: r.key, Holder: Holder{ID: l.holder}}
	}
	ls, err := l.ask(ctx, r)
	if err == nil {
		l.hold(ls)
	}
	return ls, err
}

// report tells the observer what a call came to, before fn runs.
func (l *Locker) report(ctx context.Context, key string, ls *Lease, start time.Time, err error) {
	if l.events.observe == nil || ctx == nil {
		return
	}
	e := Event{Key: key, Op: opLock, Took: time.Since(start), Err: err}
	switch {
	case err == nil:
		e.Kind, e.Handler = KindAcquired, ls.store
	case errors.Is(err, ErrDone):
		e.Kind = KindDone
	case errors.Is(err, ErrBusy):
		e.Kind = KindBusy
	case errors.Is(err, ErrUnavailable):
		e.Kind = KindUnavailable
	default: // a permanent error, which its store's health has reported; or the caller's own doing
		return
	}
	l.events.emit(ctx, e)
}

// newLease is a lease that has not been started.
func (l *Locker) newLease(ctx context.Context, c Claim, r request) *Lease {
	ls := &Lease{locker: l, claim: c, renewal: r.renewal, closure: r.closure, rowFirst: r.rowFirst, settled: make(chan struct{})}
	ls.parent, _ = LeaseFromContext(ctx)
	if r.minHold > 0 && r.record == "" { // with a record, not before it is known that fn will run
		ls.keep = time.Now().Add(r.minHold)
	}
	ctx, ls.cancel = context.WithCancelCause(ctx)
	ls.ctx = context.WithValue(ctx, leaseKey{}, ls)
	return ls
}

// hold makes a started lease the holder of its key in this process, unless it has been lost in the meantime.
func (l *Locker) hold(ls *Lease) {
	l.gate.hold(ls)
	ls.mu.Lock()
	ended := ls.ended
	ls.mu.Unlock()
	if ended {
		l.gate.free(ls, time.Time{})
	}
}
