package loki

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Release releases the lock. It returns nil if the lock was held until now and every store that it relied on has confirmed
// the release; an error that matches [ErrLockLost] if the lock was lost before, also where a store finds that out only now
// (see [Releaser]); and another error if the release was not confirmed, which says for how long the lock may stay. The
// release is then tried again in the background until the lock has expired by itself. Further calls do nothing and return
// the same.
//
// The first attempt is made, and waited for, whatever ctx says: a service that was asked to stop calls Release with a
// context that has ended, and exits. So Release returns within the timeouts of the stores, not when ctx ends. What it does
// not wait for, [Locker.Close] does: the mirror's row, and further attempts.
//
// The lease of a closure ends with the closure: releasing it returns an error and does nothing.
func (ls *Lease) Release(ctx context.Context) error {
	if ls.closure {
		return errors.New("loki: this lease belongs to a closure and is released when that returns")
	}
	if ctx == nil {
		return errNilContext
	}
	if ls.finish(nil) {
		ls.locker.settle(ls)
	}
	<-ls.settled
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

// settle lets the lease's claim go in every store that may hold it, or, under a minimum hold, sets what is left of it
// there. It returns, and closes ls.settled, when the first attempt of every release that a caller has to wait for has
// returned: the mirror's is not among them, unless the row is what the lease lived by. Each lease is settled once, after
// it has ended or instead of being started.
//
// It is counted in l.background already, by whoever ended or discarded the lease: Close may look in between.
func (l *Locker) settle(ls *Lease) {
	defer l.background.add(-1)
	defer close(ls.settled)
	ls.cancel(nil) // of no effect on one that has ended
	ls.mu.Lock()
	renewing := ls.renewing
	ls.mu.Unlock()
	if renewing != nil { // called off, so this is short; its outcome belongs in the records
		<-renewing
	}
	ls.mu.Lock()
	keep := ls.keepsUntil()
	lives := ls.lives
	waitForRow := lives == secondaryName || ls.rowFirst && !ls.secondary.silent
	primary := l.newRelease(ls, l.primary, ls.primary, keep)
	primary.claim.Mirrored = ls.secondary.may
	// Yielding wakes nobody: waiters back off, so that two never chase each other.
	primary.claim.Quiet = ls.yielded || ls.lost != nil && errors.Is(ls.lost, ErrConflict)
	ls.mu.Unlock()

	var row <-chan released
	if l.secondary != nil {
		row = l.mirrorRelease(ls, keep, waitForRow)
	}
	var inPrimary, inRow released
	// What the lease relied on is released first, and alone: the next holder may replace the row of a claim that it knows to
	// be released in the primary, and then the row would be missed here.
	rowFirst := row != nil && lives == secondaryName
	if rowFirst {
		inRow = <-row
	}
	clean := row == nil || waitForRow
	switch {
	case !primary.may:
	case primary.silent && waitForRow: // nobody waits once more for a primary that is down, when the row is what counts
		clean = false
		l.background.add(1)
		go func() {
			defer l.background.add(-1)
			primary.attempt()
		}()
	default:
		inPrimary = primary.attempt()
		clean = inPrimary.clean && clean
	}
	if waitForRow && row != nil {
		if !rowFirst {
			inRow = <-row
		}
		clean = inRow.clean && clean
	}
	ls.mu.Lock()
	ls.clean = clean
	if err := errors.Join(inPrimary.err, inRow.err); err != nil {
		ls.unreleased = &unreleasedError{key: ls.claim.Key, until: later(inPrimary.until, inRow.until), errs: err}
	}
	ls.mu.Unlock()
	switch {
	case lives == secondaryName && inRow.found == notHeld:
		ls.wasLost(secondaryName)
	case lives == primaryName && inPrimary.found == notHeld:
		// The primary has lost the claim. Where the row stood to the end, it kept others out; that is worth the wait for it.
		if !waitForRow && row != nil {
			timeout := time.NewTimer(l.secondary.timeout)
			defer timeout.Stop()
			select {
			case inRow = <-row:
			case <-timeout.C:
			}
		}
		if inRow.found == held {
			l.doubts.raise(ls.claim.Key)
		} else {
			ls.wasLost(primaryName)
		}
	}
}

// settleLater is settle for those who do not wait, or may not be made to.
func (l *Locker) settleLater(ls *Lease) { go l.settle(ls) }

// discard settles a lease that was never started.
func (l *Locker) discard(ls *Lease) {
	l.background.add(1)
	l.settleLater(ls)
}

// released is what an attempt to release a claim came to.
type released struct {
	clean bool // that was the end of it
	found found
	err   error     // why it was not confirmed
	until time.Time // when the store will have forgotten the claim by itself
}

// found is what a store that had confirmed a lease found at its release.
type found int

const (
	unsaid  found = iota // it did not say, or not for certain
	held                 // the claim, to the end
	notHeld              // no such claim, although the lease was valid
)

// wasLost is called when the lease has ended and the store that it relied on did not hold it any more. What was never used
// cannot have been lost in use.
func (ls *Lease) wasLost(store string) {
	lost := &lostError{key: ls.claim.Key, reason: ErrNotHeld, err: fmt.Errorf("the %s had lost it before it was released", store)}
	ls.mu.Lock()
	if ls.lost != nil || ls.closure && !ls.running.Load() {
		ls.mu.Unlock()
		return
	}
	ls.lost = lost
	ls.mu.Unlock()
	ls.locker.gate.free(ls, time.Time{}) // there is no minimum hold to keep
	ls.locker.events.emit(ls.ctx, Event{Kind: KindLost, Key: ls.claim.Key, Err: lost})
}
