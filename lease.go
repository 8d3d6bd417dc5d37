package loki

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is a lock that is held. It is renewed until it is released, its parent context ends, or it is lost; then its
// context ends, and the cause says why.
//
// A Lease may be used by several goroutines at once.
type Lease struct {
	locker  *Locker
	ctx     context.Context
	cancel  context.CancelCauseFunc
	parent  *Lease      // the lease in whose context this one was acquired, if any
	claim   Claim       // as minted, with the fence it was granted
	store   string      // who granted it
	closure bool        // it belongs to a closure and ends with it
	running atomic.Bool // its fn is
	renewal bool
	// rowFirst says that it was acquired in sync order whatever the mode, and is released so too.
	rowFirst bool
	keep     time.Time // the minimum hold: not released before this
	// supersedes is the token that the primary has seen released last, whose row in the secondary may be replaced.
	supersedes string
	// yielded says that it was given back to a holder of the row before it was started.
	yielded bool

	mu        sync.Mutex // guards what follows; never held while a handler, an observer or fn is called
	lives     string     // the store that last confirmed it
	end       time.Time  // until when it is trusted
	confirmed time.Time  // when the request that last confirmed it was sent
	primary   record
	secondary record
	look      string    // the token of the look at the occurrence's record
	looked    time.Time // until when that look may stand, or the record be missing: the lock is kept so long
	ended     bool      // released or lost
	lost      *lostError
	failed    bool  // fn did not return nil
	failing   error // of the renewals that failed since the last one that did not
	window    *time.Timer
	renewer   *time.Timer
	renewing  chan struct{} // not nil while a renewal is under way; closed when it has noted its outcome
	abort     context.CancelFunc
	mirroring mirrorState
	settled   chan struct{} // closed when the first attempt of every release that is waited for has returned
	clean     bool          // these attempts have left nothing behind
	// unreleased is not nil if one of these attempts was not confirmed.
	unreleased *unreleasedError
}

type leaseKey struct{}

// LeaseFromContext returns the lease that ctx belongs to: inside a closure, its own. It is how a closure gets at the
// fence to hand to the data it guards.
func LeaseFromContext(ctx context.Context) (*Lease, bool) {
	ls, ok := ctx.Value(leaseKey{}).(*Lease)
	return ls, ok
}

// Context is the parent that was given to [Locker.Acquire], ending earlier if the lease does: with a cause that matches
// [ErrLockLost] when it was lost, [ErrClosed] when the Locker was closed, context.Canceled when it was released.
func (ls *Lease) Context() context.Context { return ls.ctx }

// Key is the key of the lock as the stores know it.
func (ls *Lease) Key() string { return ls.claim.Key }

// Fence is the number that the store issued for this lease, larger than that of every earlier lease on the key which
// that store has granted; 0 where the store issues none. A store of data that refuses writes carrying a fence smaller
// than the largest it has seen is safe from a holder that has lost its lock without noticing yet.
func (ls *Lease) Fence() int64 { return ls.claim.Fence }

// start begins the lease's life: from here on its window closes by itself. It reports false, and starts nothing, if
// the lease is over already.
func (ls *Lease) start() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	if !now.Before(ls.end) {
		return false
	}
	ls.window = time.AfterFunc(ls.end.Sub(now), ls.checkWindow)
	if ls.renewal {
		ls.renewer = time.AfterFunc(ls.confirmed.Add(ls.claim.Expiry/RenewalFraction).Sub(now), ls.renew)
	}
	return true
}

// keepsUntil is before when the claim is not let go, zero if it may be at once. It is called with ls.mu held.
func (ls *Lease) keepsUntil() time.Time {
	switch {
	case ls.lost != nil || !ls.started():
		return time.Time{}
	case ls.looked.After(ls.keep):
		return ls.looked
	}
	return ls.keep
}

// started is called with ls.mu held.
func (ls *Lease) started() bool { return ls.window != nil }

// checkWindow is the timer of the window. A renewal moves the end without touching the timer, which is set anew here:
// a timer reset on every renewal could be beaten by one that has fired already.
func (ls *Lease) checkWindow() {
	ls.mu.Lock()
	left := time.Until(ls.end)
	if ls.ended || left > 0 {
		if !ls.ended {
			ls.window.Reset(left)
		}
		ls.mu.Unlock()
		return
	}
	why := ls.whyExpired()
	ls.mu.Unlock()
	ls.lose(ErrExpired, why)
}

// whyExpired is what is known of why the window was not moved on. It is called with ls.mu held.
func (ls *Lease) whyExpired() error {
	if ls.failing == nil && ls.renewal && ls.ctx.Err() != nil { // the text only: the loss is not the context's end
		return fmt.Errorf("it was renewed no longer, because the context had ended: %s", context.Cause(ls.ctx).Error())
	}
	return ls.failing
}

// renew is the timer of the renewal. Only one runs at a time: the next is set when it is over.
func (ls *Lease) renew() {
	ls.mu.Lock()
	if ls.ended || ls.ctx.Err() != nil { // who has ended the lease's context wants it no more
		ls.mu.Unlock()
		return
	}
	end := ls.end
	if !time.Now().Before(end) { // the process was stopped, or starved, past the window
		why := ls.whyExpired()
		ls.mu.Unlock()
		ls.lose(ErrExpired, why)
		return
	}
	ctx, abort := context.WithDeadline(ls.ctx, end)
	defer abort()
	ls.abort, ls.renewing = abort, make(chan struct{})
	ls.mu.Unlock()

	v := ls.locker.renew(ctx, ls)

	ls.mu.Lock()
	close(ls.renewing)
	ls.renewing = nil
	if ls.ended || ls.ctx.Err() != nil {
		ls.mu.Unlock()
		return
	}
	if v.reason != nil {
		ls.mu.Unlock()
		ls.lose(v.reason, v.err)
		return
	}
	var pause time.Duration
	firstFailure := false
	if v.end.IsZero() {
		firstFailure, ls.failing = ls.failing == nil, v.err
		pause = retryPause(time.Until(ls.end), ls.claim.Expiry)
	} else {
		ls.lives, ls.end, ls.confirmed, ls.failing = v.store, v.end, v.sent, nil
		pause = min(time.Until(v.sent.Add(ls.claim.Expiry/RenewalFraction)), time.Until(v.end)/2)
	}
	ls.renewer.Reset(max(pause, 0))
	ls.mu.Unlock()
	if firstFailure {
		ls.locker.events.emit(ls.ctx, Event{Kind: KindRenewFailed, Op: opExtend, Key: ls.claim.Key, Err: v.err})
	}
}

// retryPause is shorter the nearer the end is, so that a passing failure is survived, and never so short that a dead
// store is flooded: some ten attempts in a window.
func retryPause(left, expiry time.Duration) time.Duration {
	return max(left/4, expiry/MarginFraction, time.Millisecond)
}

// lose ends the lease because its lock is gone, and lets go whatever is left of it in the stores.
func (ls *Lease) lose(reason, err error) {
	lost := &lostError{key: ls.claim.Key, reason: reason, err: err}
	if ls.endWith(lost, lost) {
		ls.locker.events.emit(ls.ctx, Event{Kind: KindLost, Key: ls.claim.Key, Err: lost})
		ls.locker.settleLater(ls)
	}
}

// finish ends the lease because it is no longer needed: cause is what its context ends with, nil for context.Canceled.
// If it turns out to be lost instead, ls.lost says so. It reports whether it was the one to end it, and has to settle it.
func (ls *Lease) finish(cause error) bool {
	var lost *lostError
	ls.mu.Lock()
	switch {
	case ls.ended:
		ls.mu.Unlock()
		return false
	case !time.Now().Before(ls.end): // the timer is about to say so
		lost = &lostError{key: ls.claim.Key, reason: ErrExpired, err: ls.whyExpired()}
	case !ls.mirroring.refused.IsZero():
		lost = &lostError{key: ls.claim.Key, reason: ErrConflict, err: conflictWith(ls.mirroring.by)}
	}
	ls.mu.Unlock()
	if lost != nil {
		cause = lost
	}
	ended := ls.endWith(lost, cause)
	if ended && lost != nil {
		ls.locker.events.emit(ls.ctx, Event{Kind: KindLost, Key: ls.claim.Key, Err: lost})
	}
	return ended
}

// giveBack ends a lease that was not used.
func (ls *Lease) giveBack() {
	if ls.finish(nil) {
		ls.locker.settle(ls)
	}
}

// endWith makes the lease end, once: it reports false if it had ended before. Nothing is renewed or mirrored after it,
// and what is under way is called off.
func (ls *Lease) endWith(lost *lostError, cause error) bool {
	ls.mu.Lock()
	if ls.ended {
		ls.mu.Unlock()
		return false
	}
	ls.ended, ls.lost = true, lost
	ls.locker.background.add(1) // for settle, which follows
	ls.window.Stop()
	if ls.renewer != nil {
		ls.renewer.Stop()
	}
	if ls.abort != nil {
		ls.abort()
	}
	ls.mirroring.stop()
	keep := ls.keepsUntil()
	ls.mu.Unlock()
	ls.locker.gate.free(ls, keep) // first: fn may ask again as soon as its context ends
	ls.locker.forget(ls)
	ls.cancel(cause)
	return true
}

// holds reports whether key is held by ls or by a lease in whose context ls was acquired.
func (ls *Lease) holds(l *Locker, key string) bool {
	for ; ls != nil; ls = ls.parent {
		if ls.locker == l && ls.claim.Key == key {
			ls.mu.Lock()
			ended := ls.ended
			ls.mu.Unlock()
			return !ended
		}
	}
	return false
}
