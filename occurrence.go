package loki

import (
	"context"
	"errors"
	"time"
)

// The pauses between two tries to record an occurrence in a store that failed, and for how long it is tried.
const (
	firstRecordPause = 100 * time.Millisecond
	recordTime       = time.Minute
)

// WithOccurrence runs one occurrence of a scheduled job at most once across the fleet: a tick, a date, a message's id.
// If fn returns nil, the stores remember id for keep, and other calls with it return an error that matches [ErrDone] (and
// [ErrBusy]) without running fn; that ends a wait. If fn fails, another instance may run the occurrence.
//
// The record is a second claim, at the key of the lock followed by "@" and id; it is looked up in both stores after the
// lock was taken, and written to both while it is still held. keep, between [MinExpiry] and [MaxExpiry], has to be longer
// than any instance can be late. A crash, or an outage of every store, between fn's success and the writing of the record
// lets the occurrence run again; an outage is an event of [KindRecordFailed].
//
// It is for closures: with [Locker.Acquire] nobody could say whether the run succeeded.
func WithOccurrence(id string, keep time.Duration) Option {
	return func(o *options) error {
		o.occurrence, o.hasOccurrence, o.keep = id, true, keep
		return errors.Join(validatePart("the occurrence", id), validateExpiry(keep))
	}
}

// checkOccurrence looks up whether the occurrence has been run, by trying to claim its record and giving it back. A
// claim, because only that is asked of both stores in the order that makes them agree. It lives no longer than the lock,
// and the lock no shorter than it: what a crash or a failed release leaves behind must not look like a success to
// whoever takes the lock next.
func (l *Locker) checkOccurrence(ls *Lease, r request) error {
	granted := time.Now()
	ls.mu.Lock()
	left := ls.end.Sub(granted).Truncate(time.Millisecond)
	ls.mu.Unlock()
	record, err := l.ask(ls.ctx, request{key: r.record, expiry: max(left, time.Millisecond), limit: r.limit, rowFirst: true, closure: true})
	var busy *BusyError
	switch {
	case err == nil:
		clean := record.finish(nil) && l.settle(record)
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if r.minHold > 0 {
			ls.keep = granted.Add(r.minHold)
		}
		if !clean {
			ls.looked = time.Now().Add(left)
		}
		return nil
	case errors.As(err, &busy):
		return &doneError{key: r.record, holder: busy.Holder}
	case ls.ctx.Err() != nil:
		if cause := context.Cause(ls.ctx); errors.Is(cause, ErrLockLost) { // lost before fn ran: as if it had not been granted
			return &unavailableError{key: r.key, errs: cause}
		}
		return newEndedError(ls.ctx, r.key)
	}
	return err
}

// recordOccurrence remembers that fn succeeded. It returns when every store has been asked once; a store that failed is
// asked again in the background. Nothing is ever taken back: a record that was not answered for is as good as one that
// was.
func (l *Locker) recordOccurrence(ls *Lease, key string, keep time.Duration) {
	p := &pendingRecord{
		locker: l,
		ctx:    context.WithoutCancel(ls.ctx), // fn's success does not end with its caller
		claim:  l.newClaim(key, keep),
		until:  time.Now().Add(min(keep, recordTime)),
		pause:  firstRecordPause,
	}
	if p.write() { // from now on whoever looks is told the truth
		ls.mu.Lock()
		ls.looked = time.Time{}
		ls.mu.Unlock()
	}
}

// pendingRecord is one occurrence that has been run, on its way into the stores.
type pendingRecord struct {
	locker       *Locker
	ctx          context.Context
	claim        Claim
	primary, row bool // answered: ours, or there already
	until        time.Time
	pause        time.Duration
	told         bool
}

// write asks the stores that have not recorded it, and reports whether one has.
func (p *pendingRecord) write() (recorded bool) {
	l := p.locker
	var errs []error
	if !p.primary {
		a := l.primary.lock(p.ctx, p.claim, l.primary.timeout)
		p.primary = a.Held
		errs = append(errs, a.err)
		p.claim.Fence = max(p.claim.Fence, a.Fence)
	}
	if l.secondary != nil && !p.row {
		a := l.askSecondary(p.ctx, p.claim, l.secondary.timeout)
		p.row = a.Held
		errs = append(errs, a.err)
	}
	recorded = p.primary || p.row
	if p.primary && (p.row || l.secondary == nil) {
		return recorded
	}
	// "Busy" may be somebody's look at the record rather than a record, so it is no reason to stop; nor is it a failure.
	if err := errors.Join(errs...); err != nil && !p.told {
		p.told = true
		l.events.emit(p.ctx, Event{Kind: KindRecordFailed, Op: opLock, Key: p.claim.Key, Err: err})
	}
	if time.Now().Add(p.pause).After(p.until) {
		return recorded
	}
	pause := jittered(p.pause)
	p.pause *= 2
	time.AfterFunc(pause, func() { p.write() })
	return recorded
}
