package loki

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki/internal/agenda"
)

// Lease is a lock that is held. It is renewed until it is released, its parent context ends, or it is lost; then its
// context ends, and the cause says why.
//
// A Lease may be used by several goroutines at once.
type Lease struct {
	locker     *Locker
	parent     *Lease          // the lease in whose context this one was acquired, if any
	base       context.Context // the caller's
	ctx        context.Context // the lease's own, from its start on
	own        leaseContext    // what ctx is then
	cancel     context.CancelCauseFunc
	claim      Claim // as minted, with the latest fencing token of any store as its floor
	fence      int64 // of the store under whose authority the lease was started; 0 if that issues none
	store      Store // which one granted it first
	closure    bool  // it belongs to a closure and ends with it
	renewal    bool
	shares     bool // its claim may be handed over
	background bool // its release is not waited for
	minHold    time.Duration
	replaces   string // the token that the primary has seen released last, whose record in the secondary may be replaced
	running    atomic.Bool
	used       atomic.Bool   // its caller has it, or had it: code runs under it, or has run
	released   chan struct{} // closed when the first attempt of every release that the caller waits for has returned

	// The mutex guards what follows. It is locked by the lease's methods alone, and never held while a handler, an observer or
	// fn is called, nor while the key table or a reconciler is, whose mutexes come before it.
	mu                 sync.Mutex
	primary, secondary record
	authority          Store         // the store whose last confirmation the lease relies on; set by start and renewal alone
	started, over      bool          // over: released, lost, or discarded before its start
	fallingBack        bool          // a renewal under way asks the secondary, which may become authoritative
	queued             bool          // its renewal waits for others, to be sent in a batch
	handed             bool          // the claim comes from another lease
	startedAt          time.Time     // when the first lease with this claim was
	took               time.Duration // until the claim was granted
	hold               time.Time     // the end of the minimum hold: not released before it
	due                agenda.Entry  // the end of the validity, or the next renewal
	renewAt            time.Time
	renewing           chan struct{}      // not nil while a renewal is under way; closed when it has noted its outcome
	abort              context.CancelFunc // calls it off
	batched            *attempt           // that a batch has made for it
	renewErr           error              // of the renewals that failed since the last one that did not
	refusal            *refusal           // not nil while the secondary names another holder
	refused            int                // how often it has

	// Of a lease that is over.
	validAtEnd     time.Time
	secondaryFirst bool // the primary is not released before the secondary, which the lease relied on
	quiet          bool // its holder backs off: no waiter is to wake up
	failed         bool // fn did not return nil
	completion     bool // it is no lease, but the completion record of an occurrence
	lost           *lostError
	unreleased     *unreleasedError // an attempt that was waited for was not confirmed
}

// refusal is another holder's record in the secondary.
type refusal struct {
	since time.Time
	grace time.Duration // after that it is a conflict
	by    Holder
	over  chan struct{} // closed when the secondary agrees after all
}

// mirrorGrace is how long the secondary may refuse a record before that is a conflict: the refusal may be the previous
// holder's release on its way. A record that expires within twice this time is waited for, since it may be that of a process
// that died, and outlive the primary's by the way of its last mirror write.
const mirrorGrace = 250 * time.Millisecond

func graceFor(h Holder) time.Duration {
	if left := h.Left + expirySlack; left > mirrorGrace && left <= 2*mirrorGrace {
		return left
	}
	return mirrorGrace
}

type leaseKey struct{}

// leaseContext is a context that knows its lease. It is a part of that, which saves an allocation; the context inside it is
// the standard library's, so that contexts derived from it, and context.Cause, find what they look for.
type leaseContext struct {
	context.Context
	lease *Lease
}

// Value returns the lease for its key.
func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	return c.Context.Value(key)
}

// leaseTimer is a lease to its agenda.
type leaseTimer Lease

// Due is [Lease.tick].
func (t *leaseTimer) Due() { (*Lease)(t).tick() }

// LeaseFromContext returns the lease that ctx belongs to: inside a closure, its own. It is how a closure gets at the
// fencing token to hand to the data it guards.
func LeaseFromContext(ctx context.Context) (*Lease, bool) {
	ls, ok := ctx.Value(leaseKey{}).(*Lease)
	return ls, ok
}

// Context is the parent that was given to [Locker.Acquire], ending earlier if the lease does: with a cause that matches
// [ErrLockLost] when it was lost, [ErrClosed] when the Locker was closed, context.Canceled when it was released.
func (ls *Lease) Context() context.Context { return ls.ctx }

// Key is the key of the lock as the stores know it.
func (ls *Lease) Key() string { return ls.claim.Key }

// Fence is the fencing token: the number that the store issued for this lease, larger than that of every earlier lease on
// the key which that store has granted; 0 where the store issues none. Leases of one Locker that were handed over from one
// caller to the next have the same number (see [WithWait]): there the earlier caller had ended by itself. A store of data that refuses writes carrying a
// smaller number than the largest it has seen is safe from a holder that has lost its lock without noticing yet.
func (ls *Lease) Fence() int64 { return ls.fence }

var errNotALease = errors.New("loki: this Lease was not made by Acquire")

// Release releases the lock. It returns nil if the lock was held until now and every store that it relied on has confirmed
// the release; an error that matches [ErrLockLost] if the lock was lost before, also where a store finds that out only now
// (see [Releaser]); and another error if the release was not confirmed, which says for how long the lock may stay. The
// release is then tried again in the background until the lock has expired by itself. Further calls do nothing and return
// the same.
//
// The first attempt is made, and waited for, whatever ctx says: a service that was asked to stop calls Release with a
// context that has ended, and exits. So Release returns within the timeouts of the stores, not when ctx ends. For the first
// attempt in a store that it does not wait for, [Locker.Close] does. While the secondary names another holder, Release waits
// until it is known whether that is a conflict, a quarter of a second in most cases.
//
// The lease of a closure ends with the closure: releasing it returns an error and does nothing.
func (ls *Lease) Release(ctx context.Context) error {
	switch {
	case ls == nil || ls.locker == nil:
		return errNotALease
	case ls.closure:
		return errors.New("loki: this lease belongs to a closure and is released when that returns")
	case ctx == nil:
		return errNilContext
	}
	ls.finish(nil)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch {
	case ls.lost != nil:
		return ls.lost
	case ls.unreleased != nil:
		return ls.unreleased
	}
	return nil
}

// unreleasedError is what Release returns if a store has not confirmed it.
type unreleasedError struct {
	key   string
	until time.Time
	errs  error
}

func (e *unreleasedError) Error() string {
	left := max(time.Until(e.until), 0).Round(time.Millisecond)
	return fmt.Sprintf("loki: the release of the lock %q was not confirmed; it is tried again in the background, and the lock expires by itself in %v at most: %s", e.key, left, oneLine(e.errs))
}

func (e *unreleasedError) Unwrap() error { return e.errs }

// record returns what is known of the claim in a store. It is called with mu held.
func (ls *Lease) record(s Store) *record {
	if s == Primary {
		return &ls.primary
	}
	return &ls.secondary
}

// valid returns until when the lease may be trusted. It is called with mu held.
func (ls *Lease) valid() time.Time { return ls.record(ls.authority).validUntil }

// wants returns when the record in a store should end, and whether the lease is over. If it is, zero means that the record
// should be gone. If not, zero means that the record is left to the acquisition and the renewals. It is called with mu held.
func (ls *Lease) wants(s Store) (end time.Time, over bool) {
	switch {
	case ls.over && (ls.lost != nil || !ls.used.Load() && !ls.completion):
		return time.Time{}, true
	case ls.over:
		return ls.hold, true
	case s == Secondary && ls.started && ls.authority == Primary && !ls.fallingBack:
		return ls.primary.ends, false
	}
	return time.Time{}, false
}

// start begins the lease's life under the authority of a store: from here on it is renewed, and ends by itself with its
// validity. It reports false, and starts nothing, if that has passed already.
func (ls *Lease) start(authority Store, a answer) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.authority = authority; ls.store == "" {
		ls.store = authority
	}
	if ls.fence = a.Fence; a.Fence > 0 {
		ls.claim.Fence = a.Fence
	}
	if !time.Now().Before(ls.valid()) {
		return false
	}
	now := time.Now()
	ls.startedAt, ls.took = now, now.Sub(a.sent)
	if ls.minHold > 0 {
		ls.hold = now.Add(ls.minHold)
	}
	ls.renewAt = a.sent.Add(ls.claim.Expiry / renewalFraction)
	ls.begin()
	return true
}

// begin makes the lease's context and sets its timer. It is called with mu held.
func (ls *Lease) begin() {
	ls.started = true
	ctx, cancel := context.WithCancelCause(ls.base)
	ls.own = leaseContext{ctx, ls}
	ls.ctx, ls.cancel = &ls.own, cancel
	ls.due.Init((*leaseTimer)(ls))
	ls.plan()
}

// plan sets the lease's one timer. It is called with mu held.
func (ls *Lease) plan() {
	at := ls.valid()
	early := time.Duration(0)
	if until := ls.renewAt.Add(ls.claim.Expiry / queueFraction); ls.queued && until.Before(at) {
		at = until
	}
	if ls.renewal && ls.renewing == nil && ls.ctx.Err() == nil && ls.renewAt.Before(at) {
		at, early = ls.renewAt, ls.early()
	}
	ls.locker.agenda.Set(&ls.due, at, early)
}

// early returns how much earlier than it is due a renewal may begin, to be one of a batch. It is called with mu held.
func (ls *Lease) early() time.Duration {
	if !ls.sharesBatches() {
		return 0
	}
	return ls.claim.Expiry / earlyFraction
}

// sharesBatches reports whether the next renewal may be one of a batch. One whose last renewal failed goes alone: when
// it is tried again is part of what is promised. It is called with mu held.
func (ls *Lease) sharesBatches() bool {
	return ls.authority == Primary && ls.primary.stands && ls.renewErr == nil &&
		ls.claim.Expiry/renewalFraction >= leastPatience && ls.locker.primary.extendsAll()
}

// tick is called when the validity has ended or a renewal is due. One renewal is under way at a time.
func (ls *Lease) tick() {
	ls.mu.Lock()
	now := time.Now()
	switch {
	case ls.over:
		ls.mu.Unlock()
		return
	case !now.Before(ls.valid()):
		why := ls.whyExpired()
		ls.mu.Unlock()
		ls.lose(ErrExpired, why)
		return
	case ls.renewal && ls.renewing == nil && ls.ctx.Err() == nil && !now.Before(ls.renewAt.Add(-ls.early())):
		ls.renewing = make(chan struct{})
		if ls.queued = ls.sharesBatches() && ls.locker.batches.add(ls); !ls.queued {
			ls.renewAlone(nil)
		}
	case ls.queued && !now.Before(ls.renewAt.Add(ls.claim.Expiry/queueFraction)):
		ls.renewAlone(nil)
	}
	ls.plan()
	ls.mu.Unlock()
}

// renewAlone begins a round of renewal, or goes on with one of which a batch has made the first attempt. It is called with mu
// held.
func (ls *Lease) renewAlone(batched *attempt) {
	// It does not end with fn: the release comes after it (see awaitRenewal), and a request that was called off could be
	// carried out after the release.
	ctx, abort := context.WithDeadline(context.WithoutCancel(ls.base), ls.valid())
	ls.abort, ls.batched, ls.queued = abort, batched, false
	go ls.renew(ctx)
}

// renew is one round of renewal.
func (ls *Lease) renew(ctx context.Context) {
	r := ls.locker.mode.renew(ctx, ls)
	ls.mu.Lock()
	if ls.abort != nil {
		ls.abort()
		ls.abort = nil
	}
	lostAtEnd := r.lost != nil && ls.over && ls.noteLost(r.lost, r.err) // before the release goes on, which waits for renewing
	close(ls.renewing)
	fellBack := ls.fallingBack
	ls.renewing, ls.fallingBack = nil, false
	switch {
	case lostAtEnd:
		ls.mu.Unlock()
		ls.reportLost()
		return
	case ls.over:
		ls.mu.Unlock()
		return
	case r.lost != nil:
		ls.mu.Unlock()
		ls.lose(r.lost, r.err)
		return
	case ls.ctx.Err() != nil: // its owner cancelled the context: the lease is renewed no longer
		ls.plan()
		ls.mu.Unlock()
		if fellBack {
			ls.locker.secondary.background.changed(ls)
		}
		return
	}
	now := time.Now()
	firstFailure := false
	if r.by == "" {
		firstFailure, ls.renewErr = ls.renewErr == nil, moreTelling(ls.renewErr, r.err) // the last one may have been given no time
		ls.renewAt = now.Add(retryPause(ls.valid().Sub(now), ls.claim.Expiry))
	} else {
		ls.authority, ls.renewErr = r.by, nil
		confirmed := ls.record(r.by)
		sent := confirmed.ends.Add(-ls.claim.Expiry)
		ls.renewAt = now.Add(min(sent.Add(ls.claim.Expiry/renewalFraction).Sub(now), confirmed.validUntil.Sub(now)/2))
	}
	ls.plan()
	ls.mu.Unlock()
	if firstFailure {
		ls.locker.events.emit(ls.base, Event{Kind: KindRenewFailed, Op: OpExtend, Key: ls.claim.Key, Err: r.err})
	}
	if ls.locker.secondary != nil && (r.by == Primary || fellBack) { // the mirror write may be due
		ls.locker.secondary.background.changed(ls)
	}
}

// retryPause is shorter the nearer the end is, so that a passing failure is survived, and never so short that a dead
// store is flooded: some eight attempts within the validity if each fails at once, and fewer if the store is silent.
func retryPause(left, expiry time.Duration) time.Duration {
	return max(left/4, expiry/marginFraction, time.Millisecond)
}

// whyExpired is what is known of why the lease was not renewed in time. It is called with mu held.
func (ls *Lease) whyExpired() error {
	if ls.renewErr == nil && ls.renewal && ls.ctx.Err() != nil { // the text only: the loss is not the context's end
		return fmt.Errorf("it was renewed no longer, because the context had ended: %s", context.Cause(ls.ctx).Error())
	}
	return ls.renewErr
}

// lose ends the lease because its lock is gone, and releases whatever is left of it in the stores. It reports false if the lease
// had ended before.
func (ls *Lease) lose(reason, err error) bool {
	lost := &lostError{key: ls.claim.Key, reason: reason, err: err}
	ended := ls.end(lost, lost)
	if ended {
		go ls.locker.release(ls)
	}
	return ended
}

// finish ends the lease because it is no longer needed, and waits for its release. cause is what its context ends with, nil
// for context.Canceled.
func (ls *Lease) finish(cause error) {
	if cause == nil && ls.shares && ls.locker.handOver(ls) {
		return
	}
	ls.awaitVerdict()
	switch over := ls.finishNow(cause); {
	case over && ls.background:
		ls.locker.releaseLater(ls)
	case over:
		ls.locker.release(ls)
	}
	if !ls.background {
		<-ls.released
	}
}

// finishUnless is finish for a lease that nothing ran under: it waits for no verdict, and no longer than ctx.
func (ls *Lease) finishUnless(ctx context.Context, cause error) {
	if ls.finishNow(cause) {
		ls.locker.releaseLater(ls)
	}
	select {
	case <-ls.released:
	case <-ctx.Done():
	}
}

// awaitRenewal waits until a renewal that is under way has noted its outcome: the release has to follow it. One that takes
// a third of the expiry more is called off.
func (ls *Lease) awaitRenewal() {
	ls.mu.Lock()
	renewing := ls.renewing
	ls.mu.Unlock()
	if renewing == nil {
		return
	}
	timer := time.AfterFunc(ls.claim.Expiry/renewalFraction, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if ls.abort != nil { // else it is in a batch, whose time is short
			ls.abort()
		}
	})
	<-renewing
	timer.Stop()
}

// The rest of a renewal in a batch, see batch.go.

// leaveQueue takes a lease out of the queue that waits for a batch. It returns the claim to extend, and how long that may take;
// false if it does not wait any more.
func (ls *Lease) leaveQueue() (c Claim, limit time.Duration, waited bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	waited, ls.queued = ls.queued, false
	return ls.claimFor(ls.locker.primary, ""), primaryRenewalLimit(time.Until(ls.valid()), ls.claim.Expiry, ls.locker.secondary != nil), waited
}

// renewAfter goes on with a renewal alone, after the attempt that a batch has made, if it has.
func (ls *Lease) renewAfter(batched *attempt) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.renewAlone(batched)
}

// renewedInBatch completes a renewal to which a batch has brought a yes. No store is asked any more, so it does not wait.
func (ls *Lease) renewedInBatch(batched *attempt) {
	ls.mu.Lock()
	ls.batched = batched
	ls.mu.Unlock()
	ls.renew(context.WithoutCancel(ls.base))
}

// takeBatched returns the attempt to extend the record in a store that a batch has made, for the call that goes on with it.
func (ls *Lease) takeBatched(s *store) (batched *attempt) {
	if s.name == Primary {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		batched, ls.batched = ls.batched, nil
	}
	return batched
}

// finishNow ends the lease without waiting for a verdict or a release, which the caller has to see to if it reports true.
// If the lease turns out to be lost instead, ls.lost says so.
func (ls *Lease) finishNow(cause error) bool {
	var lost *lostError
	ls.mu.Lock()
	if !ls.over && !time.Now().Before(ls.valid()) { // the timer is about to say so
		lost = &lostError{key: ls.claim.Key, reason: ErrExpired, err: ls.whyExpired()}
		cause = lost
	}
	ls.mu.Unlock()
	return ls.end(lost, cause)
}

// awaitVerdict waits, while the secondary names another holder, until it agrees or the grace is over: whether that was a
// hand-over or a conflict is not known before. If no answer comes in time, the last one was a refusal: a conflict.
func (ls *Lease) awaitVerdict() {
	ls.mu.Lock()
	r, over := ls.refusal, ls.over
	ls.mu.Unlock()
	if r == nil || over {
		return
	}
	lastAnswer := max(mirrorGrace, min(ls.locker.secondary.timeout, ls.claim.Expiry/renewalFraction))
	timer := time.NewTimer(time.Until(r.since.Add(r.grace)) + lastAnswer)
	defer timer.Stop()
	select {
	case <-r.over:
	case <-ls.released:
	case <-timer.C:
		ls.conflicts(r.by)
	}
}

// conflicts ends the lease because its holder backs off to another one.
func (ls *Lease) conflicts(with Holder) {
	err := conflictWith(with)
	if ls.lose(ErrConflict, err) {
		ls.locker.events.emit(ls.base, Event{Kind: KindConflict, Store: Secondary, Op: OpLock, Key: ls.claim.Key, Err: err})
	}
}

// end makes the lease end, once: it reports false if it had ended before. No renewal or mirror write begins after it. A
// renewal that is under way is completed, and the release waits for it.
func (ls *Lease) end(lost *lostError, cause error) bool {
	ls.mu.Lock()
	if ls.over {
		ls.mu.Unlock()
		return false
	}
	ls.over, ls.lost, ls.validAtEnd, ls.secondaryFirst = true, lost, ls.valid(), ls.authority == Secondary
	ls.quiet = ls.quiet || lost != nil && errors.Is(lost, ErrConflict)
	ls.locker.background.add(1) // for release, which follows
	ls.locker.agenda.Stop(&ls.due)
	if ls.queued { // its renewal has not begun: the release need not wait for it
		close(ls.renewing)
		ls.renewing, ls.queued = nil, false
	}
	ls.endRecords()
	hold, _ := ls.wants(Primary)
	inUse := ls.inUse()
	ls.mu.Unlock()
	if !ls.background { // else when the release has returned
		ls.locker.keys.free(ls, hold) // first: fn may try again as soon as its context ends
	}
	ls.locker.forget(ls)
	ls.cancel(cause)
	if lost != nil && inUse {
		ls.locker.events.emit(ls.base, Event{Kind: KindLost, Key: ls.claim.Key, Err: lost})
	}
	return true
}

// discard ends a lease that was not started. It reports whether there is something to release.
func (ls *Lease) discard() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.over = true
	if !ls.primary.sent && !ls.secondary.sent {
		close(ls.released)
		return false
	}
	ls.endRecords()
	ls.locker.background.add(1) // for release, which follows
	return true
}

// endAsCompletion makes a lease that was not started the completion record of an occurrence, which ends at a time of its own.
func (ls *Lease) endAsCompletion(end time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.over, ls.completion, ls.hold = true, true, end
	close(ls.released)
	ls.endRecords()
}

// endRecords makes Close, and whoever waits, count on one attempt in each store. It is called with mu held.
func (ls *Lease) endRecords() {
	for _, s := range ls.locker.stores() {
		r := ls.record(s.name)
		r.retry, r.pause, r.failed = time.Time{}, 0, false
		if hold, _ := ls.wants(s.name); r.sent || hold.After(time.Now()) {
			r.owed++
			ls.locker.background.add(1)
		}
	}
}

// inUse reports whether code runs under the lease. What was not used cannot have been lost in use: that the look at an
// occurrence found the lock lost is what its caller gets. It is called with mu held.
func (ls *Lease) inUse() bool {
	return ls.started && (!ls.closure || ls.running.Load() || ls.background && ls.used.Load())
}

// wasLost is called when the lease has ended and the store that it relied on did not hold it any more.
func (ls *Lease) wasLost(store Store) {
	ls.mu.Lock()
	noted := ls.noteLost(ErrNotHeld, fmt.Errorf("the %s had lost it before it was released", store))
	held := noted && !ls.hold.IsZero()
	if held {
		ls.endRecords() // there is no minimum hold to keep
	}
	ls.mu.Unlock()
	if noted {
		ls.reportLost()
	}
	if held {
		for _, s := range ls.locker.stores() {
			s.background.changed(ls)
		}
	}
}

// noteLost makes a lease that is over a lost one, if it was used, is not one yet, and no later lock of this process may have
// replaced its record. It is called with mu held.
func (ls *Lease) noteLost(reason, err error) bool {
	if ls.lost != nil || !ls.inUse() || ls.primary.replaced || ls.secondary.replaced {
		return false
	}
	ls.lost = &lostError{key: ls.claim.Key, reason: reason, err: err}
	return true
}

func (ls *Lease) reportLost() {
	ls.locker.keys.free(ls, time.Time{}) // a lock that was lost is not kept for its minimum hold
	ls.locker.events.emit(ls.base, Event{Kind: KindLost, Key: ls.claim.Key, Err: ls.lostErr()})
}
