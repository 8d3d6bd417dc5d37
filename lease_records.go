package loki

import (
	"errors"
	"time"

	"github.com/lokilock/loki/internal/keyqueue"
)

// How the modes and the reconciler read and change what is known of a lease and of its records. The life of a lease is in lease.go.

// grantedBy notes what the primary's grant brought.
func (ls *Lease) grantedBy(a answer) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.store, ls.claim.Fence, ls.replaces = Primary, a.Fence, a.Released
}

// sending returns the claim as it is sent to a store. It is called before a request that can record it leaves, so that a
// release which comes now follows it. The claim names a record that may be replaced, another one for each n; more is whether
// there is one to name after that.
func (ls *Lease) sending(s *store, records bool, n int) (c Claim, more bool) {
	supersedes, more := ls.supersedes(s, n)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if records {
		r := ls.record(s.name)
		r.sent, r.agreed = true, false
	}
	return ls.claimFor(s, supersedes), more
}

// supersedes returns the token of a record that this claim may replace, see reconciler.predecessor.
func (ls *Lease) supersedes(s *store, n int) (token string, more bool) {
	released := ""
	if s.name == Secondary {
		ls.mu.Lock()
		released = ls.replaces
		ls.mu.Unlock()
	}
	return s.background.predecessor(ls, released, n)
}

// claimFor is called with mu held.
func (ls *Lease) claimFor(s *store, supersedes string) Claim {
	c := ls.claim
	c.Supersedes = supersedes
	if ls.over {
		c.Failed = ls.failed || ls.lost != nil
		c.Mirrored = s.name == Primary && ls.isRemembered()
		c.Quiet = s.name == Primary && ls.quiet
	}
	return c
}

// isRemembered reports whether the primary is to remember the claim, so that the next holder may replace its record in the
// secondary. One whose write has failed there takes no place of an earlier one, whose record probably still stands. It is called
// with mu held.
func (ls *Lease) isRemembered() bool {
	r := &ls.secondary
	return r.sent && (ls.replaces == "" || !r.silent || !r.ends.IsZero())
}

// answered notes the answer to a request that could record the claim or move its end.
func (ls *Lease) answered(s *store, a answer) {
	ls.mu.Lock()
	ls.record(s.name).answered(a, time.Now())
	if a.err == nil && !a.Held {
		ls.refused++
	}
	ls.mu.Unlock()
	s.background.follow(ls, a)
}

// fallsBack notes that the renewal under way goes to the secondary. A mirror write that came between the secondary's answer and the
// change of authority would end the record with the primary's.
func (ls *Lease) fallsBack() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.fallingBack = true
}

// returned notes that abandoned calls have returned.
func (ls *Lease) returned(s *store, calls int, records, failed bool, expiry time.Duration, ends time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	r := ls.record(s.name)
	// A call that landed late has set the end that the store had confirmed already. To write that anew would have a slow
	// store, each of whose calls is abandoned, asked again and again.
	asAgreed := !ls.over && r.agreed && r.agreedEnd.Equal(ends)
	r.returned(calls, records, failed, expiry, now)
	r.agreed = r.agreed || asAgreed
	end, over := ls.wants(s.name)
	if do, at := r.next(now, end, over); over && (do != stepNone || !at.IsZero()) { // Close waits for the request that follows
		r.owed++
		ls.locker.background.add(1)
	}
}

func (ls *Lease) validity(s Store) time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.record(s).validUntil
}

func (ls *Lease) validNow() time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.valid()
}

// ends returns when the primary's record does.
func (ls *Lease) ends() time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.primary.ends
}

// stands reports whether a store's latest answer was that it holds the claim, and may still do so.
func (ls *Lease) stands(s *store) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := ls.record(s.name)
	return r.stands && (s.name == Primary && ls.authority == Primary || time.Now().Before(r.validUntil))
}

func (ls *Lease) sent(s *store) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.record(s.name).sent
}

// heardSince reports whether a store has answered, in time, a request that was sent at that moment or later.
func (ls *Lease) heardSince(s *store, sent time.Time) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return !ls.record(s.name).heard.Before(sent)
}

// isMirrored reports whether the lease lives by the primary, and the secondary is to have its record.
func (ls *Lease) isMirrored() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	end, _ := ls.wants(Secondary)
	return !ls.over && !end.IsZero()
}

// silent reports whether a store did not answer the latest request.
func (ls *Lease) silent(s *store) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.record(s.name).silent
}

func (ls *Lease) authorityNow() Store {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.authority
}

func (ls *Lease) ended() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.over
}

func (ls *Lease) lostErr() *lostError {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.lost
}

// isReleasing reports whether the release is under way in the background.
func (ls *Lease) isReleasing() bool {
	if !ls.background || !ls.ended() {
		return false
	}
	select {
	case <-ls.released:
		return false
	default:
		return true
	}
}

// ranWith notes whether fn failed.
func (ls *Lease) ranWith(failed bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.failed = failed
}

// backsOff notes that the release is to wake no waiter.
func (ls *Lease) backsOff() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.quiet = true
}

// keepAgain has a minimum hold set once more in a store that has lost the record.
func (ls *Lease) keepAgain(s *store) {
	ls.mu.Lock()
	ls.record(s.name).agreed = false
	ls.mu.Unlock()
	s.background.changed(ls)
}

// keptUntil returns when the minimum hold of a lease that is over ends; zero if there is none.
func (ls *Lease) keptUntil() time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	hold, _ := ls.wants(Primary)
	return hold
}

// keepUntil prolongs the minimum hold.
func (ls *Lease) keepUntil(end time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.hold = later(ls.hold, end)
}

// refusedBy notes a refusal of the secondary. first is whether it is the first one, conflict whether it has outlasted the
// grace.
func (ls *Lease) refusedBy(b answer) (first, conflict bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	ls.refused++ // a late answer is counted nowhere else
	first = ls.refusal == nil
	conflict = ls.outlastsGrace(b.HeldBy, now)
	if !ls.over { // else its release is due
		ls.secondary.refused(now)
	}
	return first, conflict
}

// outlastsGrace reports whether the secondary has been refusing the claim for longer than the grace. It is called with mu
// held, for each refusal.
func (ls *Lease) outlastsGrace(by Holder, now time.Time) bool {
	if ls.refusal == nil {
		ls.refusal = &refusal{since: now, grace: graceFor(by), by: by, over: make(chan struct{})}
	}
	return now.Sub(ls.refusal.since) >= ls.refusal.grace
}

// refusals returns how often a store has refused the claim, also where the same mirror write was granted with its next request:
// what was read before may be out of date, see lookUp.
func (ls *Lease) refusals() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.refused
}

// agreedAgain notes that the secondary has recorded the claim.
func (ls *Lease) agreedAgain() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.refusal != nil {
		close(ls.refusal.over)
		ls.refusal = nil
	}
	ls.secondary.failed, ls.secondary.pause = false, 0
}

// mirrorFailed sets when a mirror write that failed is repeated. It reports whether it is the first to fail.
func (ls *Lease) mirrorFailed(b answer) (first bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := &ls.secondary
	first = !r.failed
	r.failed = true
	if !ls.over { // else its release is due
		r.again(time.Now(), failedPause, ls.claim.Expiry/renewalFraction)
	}
	return first
}

// holds reports whether key is held by ls or by a lease in whose context ls was acquired.
func (ls *Lease) holds(l *Locker, key string) bool {
	for ; ls != nil; ls = ls.parent {
		if ls.locker == l && ls.claim.Key == key {
			return !ls.ended()
		}
	}
	return false
}

// foundIn returns what the first release in a store found.
func (ls *Lease) foundIn(s *store) finding {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.record(s.name).found
}

// notReleased notes that the first attempt to release the claim in a store failed.
func (ls *Lease) notReleased(s *store, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.unreleased == nil {
		ls.unreleased = &unreleasedError{key: ls.claim.Key}
	}
	ls.unreleased.until = later(ls.unreleased.until, ls.record(s.name).forgets)
	ls.unreleased.errs = errors.Join(ls.unreleased.errs, err)
}

// needs returns the class of what the record in a store needs now, or when to look again, and whether it needs nothing any
// more.
func (ls *Lease) needs(s *store) (class int, at time.Time, settled bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.waitsFor(s) {
		return keyqueue.Nothing, time.Time{}, false
	}
	now := time.Now()
	r := ls.record(s.name)
	end, over := ls.wants(s.name)
	do, at := r.next(now, end, over)
	switch {
	case do != stepNone && over && !r.attempted:
		return classEnd, at, false
	case do != stepNone && !over && !r.stands:
		return classFirst, at, false
	case do != stepNone:
		return classAgain, at, false
	}
	if !over || !at.IsZero() {
		return keyqueue.Nothing, at, false
	}
	ls.locker.background.add(-r.owed) // what an abandoned call makes necessary when it returns counts anew
	r.owed = 0
	if settled = r.inFlight == 0; settled && r.counted {
		r.counted = false
		s.background.pending.Add(-1)
	}
	return keyqueue.Nothing, at, settled
}

// waitsFor reports whether the release in a store has to follow something that is under way: a renewal, or the release in
// the store that the lease relied on. It is called with mu held.
func (ls *Lease) waitsFor(s *store) bool {
	return ls.over && (ls.renewing != nil || ls.secondaryFirst && s.name == Primary && !ls.keeps())
}

// keeps reports whether a minimum hold is to be kept. It is set in both stores at the same time: the primary's record may be
// about to end. It is called with mu held.
func (ls *Lease) keeps() bool {
	hold, over := ls.wants(Primary)
	return over && hold.After(time.Now())
}

// releasedInSecondary permits the release in the primary.
func (ls *Lease) releasedInSecondary() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.secondaryFirst = false
}

// isSettled reports whether the record in a store needs nothing any more.
func (ls *Lease) isSettled(s *store) bool {
	_, _, settled := ls.needs(s)
	return settled
}

// isConfirmed reports whether a store has confirmed the end that is wanted of the record. A second attempt that is still in
// flight, as where the store is slow, asks for the same.
func (ls *Lease) isConfirmed(s *store) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := ls.record(s.name)
	end, _ := ls.wants(s.name)
	return r.agreed && r.agreedEnd.Equal(end)
}

// wasAttempted reports whether a request was sent for the record of a lease that is over.
func (ls *Lease) wasAttempted(s *store) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.record(s.name).attempted
}

// firstReleaseErr returns why the first attempt to release the claim in a store failed, or has come to nothing yet.
func (ls *Lease) firstReleaseErr(s *store) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r := ls.record(s.name)
	end, over := ls.wants(s.name)
	do, _ := r.next(time.Now(), end, over)
	switch {
	case r.attempted:
		return r.firstErr
	case r.underWay:
		return s.wrap(OpRelease, ls.claim, errNotAnswered)
	case do != stepNone:
		return s.wrap(OpRelease, ls.claim, errNotAskedInTime)
	}
	return nil
}

// mayRemain reports whether the record in a store should be gone, and may still be there, and whether the store has ever
// confirmed it.
func (ls *Lease) mayRemain(s *store) (remains, confirmed bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	end, over := ls.wants(s.name)
	r := ls.record(s.name)
	return over && r.sent && !end.After(time.Now()), !r.ends.IsZero()
}

// mayBeReplaced notes that the next lock may replace the record in a store: that the release then finds nothing says nothing
// about the lease.
func (ls *Lease) mayBeReplaced(s *store) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.record(s.name).replaced = true
}

// nextRequest prepares the request that the record in a store needs now.
func (ls *Lease) nextRequest(s *store) (q pendingRequest, ok bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	r := ls.record(s.name)
	q.end, q.over = ls.wants(s.name)
	if q.step, _ = r.next(now, q.end, q.over); q.step == stepNone || ls.waitsFor(s) {
		return q, false
	}
	q.claim, q.limit, q.fresh = ls.claimFor(s, ""), s.timeout, r.ends.IsZero()
	q.claim.Over, q.claim.Unused = q.over && q.step == stepKeep, q.step == stepDrop && !ls.used.Load() && !ls.completion
	q.first, q.disturbed = q.over && !r.attempted, r.disturbed
	r.underWay = q.first
	if s.name == Secondary { // a store that hangs must not keep the key's turn from the next request for longer
		q.limit = min(q.limit, ls.claim.Expiry/renewalFraction)
	}
	if q.step == stepKeep {
		q.extend = q.over && r.stands
		left := q.end.Sub(now)
		if q.over { // a hold that is about to end is to be confirmed as well, however little it changes
			left = max(left, leastPatience)
		}
		q.limit = min(q.limit, left)
		if !q.extend || !s.extends() {
			r.sent = true // before it leaves: a release that comes now has to follow it
		}
		q.late = !q.over && !r.failed && ls.refusal == nil && (r.forgets.IsZero() && now.Sub(ls.startedAt) > mirrorGrace || r.stands && now.After(r.ends))
	}
	return q, true
}

// tookAnswer takes the answer to such a request. It returns the kind of event to emit, how many waited for this attempt,
// and whether the record is given up because too many wait for another attempt.
func (ls *Lease) tookAnswer(w *reconciler, q pendingRequest, a answer) (event EventKind, owed int, tooMany bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	r := ls.record(w.s.name)
	if q.first {
		r.found, r.firstErr, r.underWay = ls.finds(r, a), a.err, false
	}
	if q.extend {
		r.answered(a, now)
	} else if q.step == stepDrop && !a.saysNothing() {
		r.silent = a.err != nil
	}
	switch {
	case a.err == nil && q.step == stepDrop:
		r.confirmed(q.end, q.disturbed)
		r.stands = false
	case a.err == nil && a.Held:
		r.confirmed(q.end, q.disturbed)
	case a.err == nil && q.over && !q.extend && !ls.completion && w.s.name == Secondary && !ls.outlastsGrace(a.HeldBy, now):
		r.refused(now) // the previous holder's release may be on its way
	case a.err == nil && q.over && !q.extend && !ls.completion && w.s.name == Primary && ls.secondary.agreed:
		r.again(now, failedPause, ls.claim.Expiry/8) // the secondary keeps the hold, and makes the primary's holder back off
	case a.err == nil && q.over && (!q.extend || r.found == foundNothing):
		// Another token holds the key, and nothing of ours is left; or the lock is lost, which the mode decides.
		r.confirmed(q.end, q.disturbed)
	}
	if !q.over {
		return "", 0, false
	}
	r.attempted = true
	switch permanent := a.err != nil && !IsUnavailable(a.err); {
	case ls.completion:
		if a.err != nil && !r.failed {
			r.failed, event = true, KindRecordFailed
		}
	case a.err == nil && !r.reported && !q.fresh:
		r.reported, event = true, KindReleased
	case a.err == nil && !r.reported && q.step == stepDrop && r.inFlight == 0:
		r.reported, event = true, KindRolledBack
	case permanent && r.denied: // the store refuses the rollback as it has refused the acquisition: nothing is recorded
		r.sent = false
	case permanent && !q.fresh: // that of a rollback is what the acquisition met already
		event = KindRefused
	case a.err != nil && !r.failed:
		r.failed, event = true, KindReleaseFailed
	}
	end, over := ls.wants(w.s.name)
	do, at := r.next(now, end, over)
	again := do != stepNone || !at.IsZero() // else it is settled, or will be looked at when an abandoned call returns
	if again && (a.err != nil || r.agreed && r.agreedEnd.Equal(q.end)) {
		r.again(now, endedPause, ls.claim.Expiry/8)
	}
	if again && !r.counted {
		if r.counted = true; w.pending.Add(1) > maxPending {
			w.pending.Add(-1)
			r.counted, r.sent, tooMany = false, false, true
		}
	}
	if q.disturbed == r.disturbed { // else another request follows at once, which they wait for
		owed, r.owed = r.owed, 0
	}
	return event, owed, tooMany
}

// finds returns what a first release, or a first request to keep a minimum hold, says about the lease. It is called with mu
// held.
func (ls *Lease) finds(r *record, a answer) finding {
	switch {
	case a.err != nil || !a.reports || !r.stands:
		return foundUnknown
	case a.Held:
		return foundClaim
	case a.repeated || r.replaced || !time.Now().Before(ls.validAtEnd): // an earlier request may have released it, or it may have expired
		return foundUnknown
	}
	return foundNothing
}
