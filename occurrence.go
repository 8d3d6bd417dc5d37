package loki

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WithOccurrence runs one occurrence of a scheduled job at most once across the fleet: a tick, a date, a message's id.
// If fn returns nil, the stores remember id for keep, and other calls with it return an error that matches [ErrDone] (and
// [ErrBusy]) without running fn; that ends a wait.
//
// Every instance has to come to the same id. Make it with [OccurrenceID] rather than by formatting a time: machines differ in their
// zones.
//
// If fn fails, nothing is remembered and nothing is scheduled: the occurrence runs again only where another instance waits
// for the lock, or comes to it later with the same id. Instances that were skipped have gone. Where a failed run has to be
// made up for, let every instance wait ([WithWait]) for as long as a run may take, or have fn retry, or call again with the
// same id until the error is nil or matches [ErrDone].
//
// What the stores remember is a completion record, at the key of the lock followed by "@" and id. The lock is acquired in
// both stores (under [MirrorAsync], in the secondary if that answers). Then the completion record is looked up in both by
// reading, for which both handlers have to be an [Inspector]; a store that is down is skipped if the other one decides. When
// fn has succeeded, the record is written to both while the lock is still held. keep, between [MinExpiry] and [MaxExpiry], has
// to be longer than any instance can be late.
//
// The occurrence may run again after a crash between fn's success and the writing of the record; where a store did not
// record it for longer than an expiry and the other one cannot be asked, or has lost it; and, under [MirrorAsync], while
// the only store that knows of it does not answer. A store that fails to record it is an event of [KindRecordFailed], and
// is asked again, with growing pauses, until keep is over. The lock is kept for another expiry in that case.
//
// It is for closures: with [Locker.Acquire] the Locker does not learn whether the run succeeded.
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

// occurrence is what WithOccurrence asks for.
type occurrence struct {
	record string // the key of its completion record; empty if there is none
	keep   time.Duration
}

// canInspect returns an error if a handler cannot be read, as WithOccurrence needs it.
func (l *Locker) canInspect() error {
	for _, s := range l.stores() {
		if _, ok := s.handler.(Inspector); !ok {
			return fmt.Errorf("loki: WithOccurrence needs stores that can be read, and the %s lock handler (%T) is no Inspector", s.name, s.handler)
		}
	}
	return nil
}

// lookUp looks for the completion record of an occurrence whose lock is held. It only reads: a claim that was made to find
// out would have to be rolled back, and could be taken for the record meanwhile. It returns nil if fn is to run.
//
// While the secondary names another holder, that one may be running the occurrence: what is read before it has released the
// lock is read too early.
func (l *Locker) lookUp(ls *Lease, o occurrence) error {
	for {
		if ls.awaitVerdict(); ls.ended() {
			return notLookedUp(ls)
		}
		refusals := ls.refusals()
		if err := l.lookOnce(ls, o); err != nil || ls.refusals() == refusals {
			return err
		}
	}
}

func (l *Locker) lookOnce(ls *Lease, o occurrence) error {
	var errs []error
	answered := make(map[Store]bool)
	for _, s := range l.stores() {
		if open := s.health.refusal(ls.claim.Key); open != nil { // of the circuit breaker
			errs = append(errs, s.wrap(OpInspect, Claim{Key: o.record}, open))
			continue
		}
		a := s.inspect(ls.ctx, o.record, s.timeout)
		switch {
		case a.err == nil && a.Held:
			return &doneError{key: o.record, holder: a.HeldBy}
		case a.err == nil:
			answered[s.name] = true
		case ls.ctx.Err() != nil:
			return notLookedUp(ls)
		case !IsUnavailable(a.err):
			return &notAcquiredError{key: ls.claim.Key, why: fmt.Sprintf("the occurrence could not be looked up in the %s", s.name), errs: a.err}
		}
		errs = append(errs, a.err)
	}
	switch {
	case ls.ctx.Err() != nil:
		return notLookedUp(ls)
	case !answered[Primary] && !answered[Secondary], l.isSync() && !answered[Secondary]:
		return &notAcquiredError{key: ls.claim.Key, why: "the occurrence could not be looked up", errs: errors.Join(errs...), unavailable: true}
	}
	return nil
}

// notLookedUp returns the error of a call whose lease ended before it was known whether fn should run.
func notLookedUp(ls *Lease) error {
	lost := ls.lostErr()
	switch {
	case lost != nil && errors.Is(lost, ErrConflict):
		return &BusyError{Key: ls.claim.Key, err: lost.err}
	case lost != nil: // as if it had not been granted
		return &notAcquiredError{key: ls.claim.Key, why: "it was lost while the occurrence was looked up", errs: errors.New(lost.bare()), unavailable: true}
	}
	return newEndedError(ls.ctx, ls.claim.Key)
}

// complete records that an occurrence was run, while the lock is held. It returns when every store has been asked once.
// One that has not recorded it is asked again in the background, and the lock is kept for another expiry, since an instance
// that reads only that store would run the occurrence again.
func (l *Locker) complete(ls *Lease, o occurrence) {
	ctx := context.WithoutCancel(ls.ctx) // fn's success does not end with its caller
	record := l.newLease(ctx, request{key: o.record, expiry: o.keep})
	record.primary.lateness, record.secondary.lateness = ls.primary.lateness, ls.secondary.lateness
	record.endAsCompletion(time.Now().Add(o.keep))
	everywhere := true
	for _, s := range l.stores() {
		if s.health.refusal(ls.claim.Key) != nil { // nor is a store waited for that is down
			s.background.changed(record)
			everywhere = false
			continue
		}
		s.background.releaseNow(record)
		everywhere = record.isConfirmed(s) && everywhere
	}
	if !everywhere {
		ls.keepUntil(time.Now().Add(ls.claim.Expiry))
	}
}
