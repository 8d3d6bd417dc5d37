package loki

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// The pauses between two tries to record an occurrence in a store that failed, and for how long it is tried.
const (
	firstRecordPause = 100 * time.Millisecond
	recordTime       = time.Minute
)

// WithOccurrence runs one occurrence of a scheduled job at most once across the fleet: a tick, a date, a message's id.
// If fn returns nil, the stores remember id for keep, and other calls with it return an error that matches [ErrDone] (and
// [ErrBusy]) without running fn; that ends a wait.
//
// Every instance has to come to the same id. Make it with [OccurrenceID] rather than by formatting a time: the zone of a
// machine is its own affair.
//
// If fn fails, nothing is remembered and nothing is scheduled: the occurrence runs again only where another instance waits
// for the lock, or comes to it later with the same id. Instances that were skipped have gone. Where a failed run has to be
// made up for, let every instance wait ([WithWait]) for as long as a run may take, or have fn retry, or call again with the
// same id until the error is nil or matches [ErrDone].
//
// The record is a second claim, at the key of the lock followed by "@" and id. The lock is acquired in both stores, as
// under [MirrorSync]; then the record is looked up in both, and after fn it is written to both while the lock is still
// held. keep, between [MinExpiry] and [MaxExpiry], has to be longer than any instance can be late.
//
// The occurrence may run again after a crash between fn's success and the writing of the record; where a store did not
// record it for longer than an expiry and the other one cannot be asked, or has lost it; and, under [MirrorAsync], while
// the only store that knows of it does not answer. A store that fails to record it is an event of [KindRecordFailed].
//
// It is for closures: with [Locker.Acquire] nobody could say whether the run succeeded.
func WithOccurrence(id string, keep time.Duration) Option {
	return func(o *options) error {
		mistake := errors.Join(o.once("WithOccurrence", [2]any{id, keep}), validatePart("the occurrence", id))
		o.occurrence, o.hasOccurrence, o.keep = id, true, keep
		if keep < MinExpiry || keep > MaxExpiry {
			mistake = errors.Join(mistake, fmt.Errorf("loki: an occurrence cannot be remembered for %v: it must be between %v and %v", keep, MinExpiry, MaxExpiry))
		}
		return mistake
	}
}

// OccurrenceID returns the id, for [WithOccurrence], of the run that was scheduled for t: the same in every instance,
// whatever the zone of its machine. It names the period that t lies in. Where the scheduler does not pass the scheduled
// time, the current time will do as long as every instance calls within that period: not for a daily job at 23:59.
//
// A period of whole days (24h, 7*24h) is counted by the calendar of zone, which the fleet has to agree on: a day is a date,
// a week begins on Monday. A day on which the clocks change is one day, so a job that is scheduled for 02:30 runs once in
// the night that has two of them, and also in the one that has none, where its scheduler moves it.
//
// Any other period is counted in UTC, whatever zone is, because an hour by the wall clock may come twice. Each period has
// one occurrence: pass the interval of the schedule, or less where the schedule goes by a wall clock whose changes make the
// distance between two runs shorter than usual ("every six hours" has one of five: pass an hour). Zero stands for t itself,
// for schedulers that hand the same t to every instance.
//
// A nil zone is UTC. time.Local is right only where all machines have the same one.
func OccurrenceID(t time.Time, period time.Duration, zone *time.Location) string {
	const day = 24 * time.Hour
	if period < day || period%day != 0 {
		return t.UTC().Truncate(period).Format(time.RFC3339Nano)
	}
	if zone == nil {
		zone = time.UTC
	}
	year, month, date := t.In(zone).Date()
	// Truncate counts from a Monday, in days of 24 hours, which those of UTC are.
	return time.Date(year, month, date, 0, 0, 0, 0, time.UTC).Truncate(period).Format(time.DateOnly)
}

// checkOccurrence looks up whether the occurrence has been run, by trying to claim its record and giving it back. A
// claim, because only that is asked of both stores in the order that makes them agree.
//
// Such a look must not be taken for the record by whoever takes the lock next. So it lives no longer than the lock, and
// where it may not be gone, because the store did not say so, the lock is kept until it is.
func (l *Locker) checkOccurrence(ls *Lease, r request) error {
	granted := time.Now()
	ls.mu.Lock()
	left := max(ls.end.Sub(granted).Truncate(time.Millisecond), time.Millisecond)
	ls.looked = granted.Add(left)
	ls.mu.Unlock()

	look, err := l.ask(ls.ctx, request{key: r.record, expiry: left, rowFirst: true, closure: true})
	var busy *BusyError
	switch {
	case err == nil:
		if look.finish(nil) {
			l.settleLater(look)
		}
		select {
		case <-look.settled:
		case <-ls.ctx.Done():
		}
	case errors.As(err, &busy):
		ls.mu.Lock()
		ls.looked = time.Time{}
		ls.mu.Unlock()
		return &doneError{key: r.record, holder: busy.Holder}
	}
	switch {
	case errors.Is(context.Cause(ls.ctx), ErrLockLost): // before fn ran: as if it had not been granted
		return &notAcquiredError{key: r.key, why: "it was lost while the occurrence was looked up", errs: l.primary.wrap(opLock, ls.claim, Unavailable(errOver)), unavailable: true}
	case ls.ctx.Err() != nil:
		return newEndedError(ls.ctx, r.key)
	case err != nil:
		return err
	}
	look.mu.Lock()
	clean := look.clean
	look.mu.Unlock()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.look = look.claim.Token
	if clean {
		ls.looked = time.Time{}
	} else {
		ls.looked = time.Now().Add(left)
	}
	if r.minHold > 0 {
		ls.keep = granted.Add(r.minHold)
	}
	return nil
}

// recordOccurrence remembers that fn succeeded. It returns when every store has been asked once. One that has not
// recorded it is asked again in the background, and the lock is kept for another expiry, since an instance that asks only
// that store would run the occurrence again. Nothing is ever taken back: a record that was not answered for is as good
// as one that was.
func (l *Locker) recordOccurrence(ls *Lease, key string, keep time.Duration) {
	p := &pendingRecord{
		locker: l,
		ctx:    context.WithoutCancel(ls.ctx), // fn's success does not end with its caller
		claim:  l.newClaim(key, keep),
		until:  time.Now().Add(min(keep, recordTime)),
		pause:  firstRecordPause,
	}
	ls.mu.Lock()
	p.claim.Supersedes = ls.look // which may still be on its way out
	ls.mu.Unlock()
	everywhere := p.write()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if everywhere {
		ls.looked = time.Time{}
	} else {
		ls.looked = time.Now().Add(ls.claim.Expiry)
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

// write asks the stores that have not recorded it, and reports whether all have.
func (p *pendingRecord) write() bool {
	l := p.locker
	var errs []error
	if !p.primary {
		a := l.primary.lock(p.ctx, p.claim, l.primary.timeout)
		p.primary = a.Held
		errs = append(errs, a.err)
		p.claim.Fence = max(p.claim.Fence, a.Fence)
	}
	if l.secondary != nil && !p.row {
		a := l.askSecondary(p.ctx, p.claim, time.Time{}, l.secondary.timeout)
		p.row = a.Held
		errs = append(errs, a.err)
	}
	if p.primary && (p.row || l.secondary == nil) {
		return true
	}
	// "Busy" may be somebody's look at the record rather than a record, so it is no reason to stop; nor is it a failure.
	if err := errors.Join(errs...); err != nil && !p.told {
		p.told = true
		l.events.emit(p.ctx, Event{Kind: KindRecordFailed, Op: opLock, Key: p.claim.Key, Err: err})
	}
	if time.Now().Add(p.pause).After(p.until) {
		return false
	}
	pause := retry.Around(p.pause)
	p.pause *= 2
	time.AfterFunc(pause, func() { p.write() })
	return false
}
