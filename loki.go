package loki

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki/internal/agenda"
)

// Locker runs closures under a lock that instances on many machines share. Make one with [Builder.Build] or [New] and
// keep it as long as the service runs; it may be used by any number of goroutines at once. It closes nothing that it
// did not open: the handlers and their clients belong to the caller.
type Locker struct {
	self       *Locker // a copy has another address
	serviceKey string
	holder     string
	mode       mode
	primary    *store
	secondary  *store // nil if there is none
	events     *events

	agenda     *agenda.Agenda // of every lease's timer
	batches    batcher        // of renewals
	keys       *keyTable
	suspects   suspects
	longest    atomic.Int64 // the longest expiry that was asked for
	calls      tally        // running calls and closures
	background tally        // first attempts that Close waits for

	mu      sync.Mutex // guards what follows
	closed  bool
	closing chan struct{}       // closed when closed becomes true
	leases  map[*Lease]struct{} // from Acquire, which Close has to end
}

var (
	errNilContext = errors.New("loki: the context is nil: pass context.Background() if there is no other")
	errNoLocker   = errors.New("loki: this Locker was not made by Build or New, or is a copy of one: pass the pointer that they return")
	errOccurrence = errors.New("loki: WithOccurrence is for closures: use ExecuteWithinLock, which knows whether the run succeeded")
	errNilClosure = errors.New("loki: there is nothing to run: fn is nil")
)

// New returns a Locker made of c, or an error that joins a sentence for each field that is wrong. Nothing is sent to the
// stores: one that is down does not keep a service from starting.
func New(c Config) (*Locker, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	events := newEvents(c.Observer)
	l := &Locker{
		serviceKey: encodePart(c.ServiceKey),
		holder:     cmp.Or(c.Holder, processName()),
		primary:    newStore(Primary, c.Primary, cmp.Or(c.PrimaryTimeout, DefaultPrimaryTimeout), events),
		secondary:  newStore(Secondary, c.Secondary, cmp.Or(c.SecondaryTimeout, DefaultSecondaryTimeout), events),
		events:     events,
		keys:       newKeyTable(),
		closing:    make(chan struct{}),
		leases:     make(map[*Lease]struct{}),
	}
	l.self, l.batches.l = l, l
	l.agenda = agenda.New(l.batches.next)
	for _, s := range l.stores() {
		s.background = newReconciler(l, s)
	}
	switch {
	case l.secondary == nil:
		l.mode = alone{l}
	case c.Mirror == MirrorSync:
		l.mode = inSync{l}
	default:
		l.mode = async{l}
	}
	if l.secondary != nil {
		p, s := l.primary.health, l.secondary.health
		p.other, s.other, s.required = s, p, l.isSync()
	}
	return l, nil
}

// stores returns the stores that there are, the primary first.
func (l *Locker) stores() []*store {
	if l.secondary == nil {
		return []*store{l.primary}
	}
	return []*store{l.primary, l.secondary}
}

func (l *Locker) isSync() bool {
	_, ok := l.mode.(inSync)
	return ok
}

// ExecuteWithinLock runs fn while holding the lock, on the caller's goroutine, at most once. If the lock is held
// elsewhere fn is skipped and the error matches [ErrBusy]; the package comment has the table of all outcomes.
//
// expiry, between [MinExpiry] and [MaxExpiry], is how long others wait after a crash of this process, not how long fn
// may run: the lock is renewed while fn runs. fn's context ends, with a cause that matches [ErrLockLost], the moment
// the lock is lost; it ends like ctx when ctx does, and then the lock is no longer renewed.
//
// When fn has returned, or has panicked or called runtime.Goexit, the lock is released, and the call returns after the first
// attempt. A panic goes on; nothing recovers it. While the secondary names another holder, the call waits until it is known
// whether that is a conflict: a quarter of a second in most cases.
func (l *Locker) ExecuteWithinLock(ctx context.Context, expiry time.Duration, fn func(context.Context) error, opts ...Option) (err error) {
	c, err := l.prepare(ctx, expiry, opts, true)
	switch {
	case fn == nil:
		return errNilClosure
	case err != nil:
		return err
	}
	ls, err := l.acquire(ctx, c)
	if err != nil {
		return err
	}
	defer l.calls.add(-1)
	if c.outcome != nil {
		c.outcome.Ran = true
	}
	ls.running.Store(true)
	defer ls.running.Store(false)
	failed := true // unless fn returns nil
	// Deferred, not called after fn: a panic or a Goexit releases the lock as well.
	defer func() {
		ls.ranWith(failed)
		ls.finish(nil)
		if lost := ls.lostErr(); lost != nil {
			err = lost.withFnError(err)
		}
	}()
	err = fn(ls.ctx)
	failed = err != nil
	if err == nil && c.occurrence.record != "" {
		l.complete(ls, c.occurrence)
	}
	return err
}

// Execute is [Locker.ExecuteWithinLock] for a fn with a result. Where the error says that fn did not run, the result
// is zero; else it is what fn returned.
func Execute[T any](ctx context.Context, l *Locker, expiry time.Duration, fn func(context.Context) (T, error), opts ...Option) (T, error) {
	var result T
	var run func(context.Context) error
	if fn != nil {
		run = func(ctx context.Context) (err error) {
			result, err = fn(ctx)
			return err
		}
	}
	err := l.ExecuteWithinLock(ctx, expiry, run, opts...)
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
	c, err := l.prepare(ctx, expiry, opts, false)
	if err != nil {
		return nil, err
	}
	ls, err := l.acquire(ctx, c)
	if err != nil {
		return nil, err
	}
	defer l.calls.add(-1)
	if c.outcome != nil {
		c.outcome.Ran = true
	}
	return ls, nil
}

// call is one call, checked and put together.
type call struct {
	request
	outcome    *Outcome // nil if the caller wants none
	occurrence occurrence
	wait       time.Duration // 0 or less: none
	lateHold   time.Duration // the minimum hold with an occurrence: not before it is known that fn will run
}

// prepare checks the arguments of a call. It fills the outcome with zeros whatever it finds: an earlier call's must not
// stay.
func (l *Locker) prepare(ctx context.Context, expiry time.Duration, opts []Option, closure bool) (c call, err error) {
	o, err := newOptions(opts)
	c.outcome = o.outcome
	if o.outcome != nil {
		*o.outcome = Outcome{}
	}
	switch {
	case l == nil || l.self != l:
		return c, errNoLocker
	case err != nil:
		return c, err
	case ctx == nil:
		return c, errNilContext
	}
	if err := validateExpiry(expiry); err != nil {
		return c, err
	}
	c.request = request{key: l.serviceKey, expiry: expiry, renewal: !o.noRenewal, background: o.background, closure: closure, both: o.hasOccurrence}
	c.wait = o.wait
	if o.hasResource {
		c.key += "/" + encodePart(o.resource)
		if err := validateLength("the key", c.key); err != nil {
			return c, err
		}
	}
	if o.hasOccurrence {
		if !closure {
			return c, errOccurrence
		}
		c.lateHold = o.minHold
		c.occurrence = occurrence{record: c.key + "@" + encodePart(o.occurrence), keep: o.keep}
		if err := errors.Join(validateLength("the key", c.occurrence.record), l.canInspect()); err != nil {
			return c, err
		}
	} else {
		c.minHold = o.minHold
	}
	return c, nil
}

// acquire acquires the lock for a call. If it returns a lease, the caller takes one from l.calls when done.
func (l *Locker) acquire(ctx context.Context, c call) (*Lease, error) {
	start := time.Now()
	if !l.enter() {
		return nil, ErrClosed
	}
	if c.wait > 0 && c.wait <= MaxExpiry {
		c.waitUntil = start.Add(c.wait)
	}
	l.noteExpiry(c.expiry)
	ls, err := l.tryUnlessDone(ctx, c)
	if err == nil && !l.admit(ls) {
		ls.finishUnless(ctx, ErrClosed)
		ls, err = nil, ErrClosed
	}
	if c.outcome != nil {
		c.outcome.Key, c.outcome.Waited = c.key, time.Since(start)
		if ls != nil {
			c.outcome.Store, c.outcome.Fence = ls.store, ls.fence
		}
	}
	l.report(ctx, c.key, ls, start, err)
	if err != nil {
		l.calls.add(-1)
		return nil, err
	}
	return ls, nil
}

// tryUnlessDone is try for a call that may be for an occurrence, which is looked up under the lock.
func (l *Locker) tryUnlessDone(ctx context.Context, c call) (*Lease, error) {
	for {
		ls, err := l.try(ctx, c)
		if err != nil || c.occurrence.record == "" {
			return ls, err
		}
		granted := time.Now()
		err = l.lookUp(ls, c.occurrence)
		if err == nil {
			if c.lateHold > 0 {
				ls.keepUntil(granted.Add(c.lateHold))
			}
			return ls, nil
		}
		ls.finishUnless(ctx, nil)
		if conflict := errors.Is(err, ErrBusy) && !errors.Is(err, ErrDone); !conflict || c.wait <= 0 || !c.waitUntil.IsZero() && !time.Now().Before(c.waitUntil) {
			return nil, err
		}
	}
}

// try acquires the lock once, or waits for it.
func (l *Locker) try(ctx context.Context, c call) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, newEndedError(ctx, c.key)
	}
	if outer, ok := LeaseFromContext(ctx); ok && outer.holds(l, c.key) {
		return nil, &BusyError{Key: c.key, Holder: Holder{ID: l.holder}, Nested: true}
	}
	if c.wait > 0 {
		return l.wait(ctx, c.request)
	}
	for busy, released := l.keys.busy(c.key); busy; busy, released = l.keys.busy(c.key) {
		if released == nil {
			return nil, &BusyError{Key: c.key, Holder: Holder{ID: l.holder}}
		}
		select { // see WithBackgroundRelease
		case <-released:
		case <-ctx.Done():
			return nil, newEndedError(ctx, c.key)
		case <-l.closing:
			return nil, ErrClosed
		}
	}
	ls, err := l.mode.acquire(ctx, c.request)
	if err == nil {
		l.hold(ls)
	}
	return ls, err
}

// hold makes a started lease the holder of its key in this process, unless it has been lost in the meantime.
func (l *Locker) hold(ls *Lease) {
	l.keys.hold(ls)
	if ls.ended() {
		l.keys.free(ls, time.Time{})
	}
}

// report emits what a call came to, before fn runs.
func (l *Locker) report(ctx context.Context, key string, ls *Lease, start time.Time, err error) {
	if l.events.observe == nil || ctx == nil {
		return
	}
	e := Event{Key: key, Op: OpLock, Took: time.Since(start), Err: err}
	switch {
	case err == nil:
		e.Kind, e.Store = KindAcquired, ls.store
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

// Close ends the Locker's work. From then on calls return [ErrClosed], waiting ones too, and leases from
// [Locker.Acquire] are ended with that cause and released. Close waits for running closures, whose locks are still
// renewed, then for the first attempt of every release and rollback in each store, then for the observer. It waits until ctx
// ends, and up to [Config.PrimaryTimeout] and [Config.SecondaryTimeout] together also if it has: a service that was asked to
// stop has a context that has ended, and exits when Close returns. Retries are not waited for, nor the end of a minimum hold. A request
// that a handler has not returned from, for all its deadline, is waited for up to half a minute, and so is the release that
// has to follow it. That is so after a connection died in silence: go-redis with its default settings waits five seconds for
// a reply, and Close some seven if the server cannot be reached over another connection either. A grace period after SIGTERM
// should leave time for that, or ctx a deadline.
//
// Giving up stops nothing: Close returns an error that matches ctx's, and may be called again. Called with the context
// of a running closure it returns an error instead of waiting for itself. Handlers and their clients stay open.
func (l *Locker) Close(ctx context.Context) error {
	if l == nil || l.self != l {
		return errNoLocker
	}
	if ctx == nil {
		return errNilContext
	}
	for ls, _ := LeaseFromContext(ctx); ls != nil; ls = ls.parent {
		if ls.locker == l && ls.running.Load() {
			return fmt.Errorf("loki: Close was called inside the closure that holds %q, and would wait for it forever: call it after the closure has returned", ls.claim.Key)
		}
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	leases := make([]*Lease, 0, len(l.leases))
	for ls := range l.leases {
		leases = append(leases, ls)
	}
	l.mu.Unlock()
	for _, ls := range leases {
		if ls.finishNow(ErrClosed) {
			go l.release(ls)
		}
	}
	var onePerStore time.Duration // is waited for whatever ctx says
	for _, s := range l.stores() {
		onePerStore += s.timeout
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), onePerStore)
	defer cancel()
	wait := func(wait func(context.Context) error) error {
		if wait(patient) == nil {
			return nil
		}
		return wait(ctx)
	}
	if err := wait(l.calls.wait); err != nil {
		return fmt.Errorf("loki: Close gave up while %d calls were still running: %w", l.calls.count(), err)
	}
	for _, s := range l.stores() {
		s.close()
	}
	if err := wait(l.background.wait); err != nil {
		return fmt.Errorf("loki: Close gave up while %d releases had not been answered: %w", l.background.count(), err)
	}
	for _, s := range l.stores() {
		s.health.end(ctx)
	}
	if err := wait(l.events.flush); err != nil {
		return fmt.Errorf("loki: Close gave up while the observer was still busy: %w", err)
	}
	return nil
}

// admit hands a lease over to its caller, who uses it from now on; one of Acquire gets on the list of those that Close has to end.
// It reports false because the Locker is closed.
func (l *Locker) admit(ls *Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	ls.used.Store(true)
	if !ls.closure && !ls.ended() { // else it was lost already
		l.leases[ls] = struct{}{}
	}
	return true
}

// forget takes a lease off the list of those that Close has to end.
func (l *Locker) forget(ls *Lease) {
	if ls.closure {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leases, ls)
}

// enter counts a call in, or reports false because the Locker is closed.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls.add(1)
	return true
}

// tally counts what is under way, and lets Close wait for none. A WaitGroup cannot be waited for with a context, and
// must not grow while it is waited for.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed and set to nil when n comes to 0
}

func (t *tally) add(delta int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += delta
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) wait(ctx context.Context) error {
	for {
		t.mu.Lock()
		if t.n == 0 {
			t.mu.Unlock()
			return nil
		}
		if t.zero == nil {
			t.zero = make(chan struct{})
		}
		zero := t.zero
		t.mu.Unlock()
		select {
		case <-zero:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}
