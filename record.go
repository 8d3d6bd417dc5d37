package loki

import (
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// record is one claim in one store: what is known of it there, and how far it is from what it should be. Its methods are
// pure: they lock nothing, send nothing and start no timer. The lease's mutex guards it.
//
// What a record should be is one time, its wanted end: the mirror's record should end with the primary's, that of a lease
// that is over should be gone, a minimum hold or a completion record should end at a time of its own. One rule, next, leads
// there from whatever is known, so that no kind of background work can disagree with another.
type record struct {
	sent   bool // a request that can record the claim has left: it has to be released there
	denied bool // that request met a permanent error, and nothing else was sent
	stands bool // the store's latest answer was that the claim holds
	silent bool // the store did not answer the latest request

	heard      time.Time // when the latest request was sent that the store has answered in time
	ends       time.Time // the end that the store confirmed last, counted from before the request was sent
	validUntil time.Time // until when that may be trusted
	forgets    time.Time // from when on the store has forgotten the claim by itself, whatever happened

	// A request that failed may be carried out yet: one that can record the claim anew until mayRecord, one that can only
	// move its end until mayMove, which is never before that. Abandoned calls may as long as they are in flight.
	mayRecord, mayMove time.Time
	lateness           time.Duration // the longest time after which one is expected to be carried out
	inFlight           int
	lastReturn         time.Time // of an abandoned call

	// If such a request lands, the store keeps the claim no longer than weakest.
	weakest time.Duration

	// The store has confirmed agreedEnd, the wanted end of that time, and no abandoned call has returned since that request
	// was sent: disturbed counts those that have.
	agreed    bool
	agreedEnd time.Time
	disturbed int

	retry  time.Time     // no request before that
	pause  time.Duration // after the next failure
	failed bool          // the latest request failed, and an event has said so
	owed   int           // how many wait for the next attempt, Close among them

	// Of a lease that is over.
	found     finding // what the first release, or the first request to keep the record, found
	firstErr  error   // of the first of these, if it failed
	attempted bool    // one of these has come to something
	underWay  bool    // the first of these is
	replaced  bool    // a later lock of this process may have replaced it
	reported  bool    // an event has reported the release
	counted   bool    // it is one of those that wait for another attempt
}

// step is what a record needs next.
type step int

const (
	stepNone step = iota
	stepKeep      // have it end at the wanted time
	stepDrop      // release it
)

// The first pauses before a request is repeated: after a failure of the mirror, after its refusal, and when the lease is
// over. Each further one is twice as long, up to a third of the expiry while the lease lives and an eighth afterwards.
const (
	failedPause  = 100 * time.Millisecond
	refusedPause = 25 * time.Millisecond
	endedPause   = 50 * time.Millisecond
)

// next returns what the record needs now, so that it ends at want; a want that has passed, zero for one, means that it
// should be gone. If it needs nothing now it returns when to look again; zero means when something happens.
func (r *record) next(now, want time.Time, over bool) (step, time.Time) {
	gone := !want.After(now)
	if gone && (!over || !r.sent || !r.forgets.After(now)) {
		return stepNone, time.Time{}
	}
	lands := r.mayMove
	if want.IsZero() {
		lands = r.mayRecord
	}
	// A request that failed earlier may still undo what the store has agreed to. Of a live lease that shows at its next write;
	// when it is over, the request is repeated. A call that is in flight is followed when it returns.
	if r.agreed && r.agreedEnd.Equal(want) && (!over || r.inFlight > 0 || !lands.After(now)) {
		return stepNone, time.Time{}
	}
	if r.retry.After(now) {
		if gone && !r.retry.Before(r.forgets) {
			return stepNone, time.Time{}
		}
		return stepNone, r.retry
	}
	if gone {
		return stepDrop, time.Time{}
	}
	return stepKeep, time.Time{}
}

// answered takes the answer to a request that could record the claim or move its end.
func (r *record) answered(a answer, now time.Time) {
	if !a.saysNothing() {
		r.silent = a.err != nil
	}
	if a.err == nil {
		r.heard = later(r.heard, a.sent)
	}
	switch {
	case a.err != nil:
		r.denied = a.couldRecord && !IsUnavailable(a.err) && !a.repeated && (r.denied || r.forgets.IsZero())
	case a.Held:
		r.stands, r.denied = true, false
		r.ends = a.sent.Add(a.expiry)
	default:
		r.stands = false
	}
	if a.Held || a.unknown() {
		r.forgets = later(r.forgets, now.Add(a.expiry))
	}
	if a.unknown() && a.couldRecord && (r.weakest == 0 || a.weakest < r.weakest) {
		r.weakest = a.weakest
	}
	r.inFlight += len(a.left)
	if a.failed && !r.denied {
		r.mayLand(a.couldRecord, a.expiry, now)
	}
	if a.err == nil && a.Held {
		r.validUntil = a.sent.Add(trusted(r.keeps(a.expiry, a.sent)))
	}
}

// mayLand notes that a request which failed may be carried out yet: for as long as it asked for, since a record that it makes
// after that would end later than any rule here allows for, but not for the years that a minimum hold or a completion record
// may ask for.
func (r *record) mayLand(records bool, asked time.Duration, now time.Time) {
	until := now.Add(min(asked, r.lateness))
	r.mayMove = later(r.mayMove, until)
	if records {
		r.mayRecord = later(r.mayRecord, until)
	}
}

// keeps returns for how long an answer to a request for expiry, sent at that time, can be relied on. An earlier request of
// unknown outcome asked for what was left of the lease then. If it landed after this one was sent, also if it has returned
// since, the store keeps the claim no longer than that.
func (r *record) keeps(expiry time.Duration, sent time.Time) time.Duration {
	if r.inFlight == 0 && !r.mayRecord.After(sent) && r.lastReturn.Before(sent) {
		r.weakest = 0
		return expiry
	}
	if r.weakest == 0 {
		return expiry
	}
	return min(expiry, r.weakest)
}

// confirmed notes that the store has confirmed the end that was wanted when the request was sent, after so many
// disturbances. A call that has returned since may have been carried out after that request.
func (r *record) confirmed(want time.Time, disturbed int) {
	r.agreed, r.agreedEnd, r.failed = disturbed == r.disturbed, want, false
}

// returned notes that abandoned calls have returned. They may have taken effect as late as now; those that failed may
// still do so.
func (r *record) returned(calls int, records, failed bool, expiry time.Duration, now time.Time) {
	r.inFlight -= calls
	r.lastReturn = now
	r.disturbed++
	r.agreed, r.retry = false, time.Time{}
	r.forgets = later(r.forgets, now.Add(expiry))
	if failed {
		r.mayLand(records, expiry, now)
	}
}

// again sets when the request is repeated. Its pauses grow from first to longest.
func (r *record) again(now time.Time, first, longest time.Duration) {
	pause := max(r.pause, first)
	r.retry = now.Add(pause + retry.UpTo(pause/4))
	r.pause = min(2*pause, max(first, longest))
}

// refused sets when a request is repeated that was refused.
func (r *record) refused(now time.Time) {
	r.pause = 0
	r.again(now, refusedPause, refusedPause)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The margin is the part of an expiry in which a lease is no longer trusted although the store may still hold it. It covers
// clocks that run at different rates and the time between the end of the lease and the moment fn notices.
const (
	marginFraction = 20
	minMargin      = time.Millisecond

	// renewalFraction says when a lease is renewed: after a third of its expiry. A renewal that fails is repeated until the
	// validity ends.
	renewalFraction = 3
)

// trusted returns for how long a lease may be trusted that a store has confirmed for expiry, counted from before the
// request was sent, because the store starts the expiry at some moment after that.
func trusted(expiry time.Duration) time.Duration {
	return expiry - max(expiry/marginFraction, minMargin)
}
