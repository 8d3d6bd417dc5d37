package loki

import (
	"context"
	"errors"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// async is the mode in which the primary starts fn, and the secondary learns of the lock in the background. While the
// primary is unavailable the secondary decides.
//
// The mirror write needs no code here. The secondary's record of a live lease should end with the primary's: the wanted end
// of the record says so (see Lease.wants), and the reconciler writes it. What it learns, a refusal or an agreement, comes
// back to mirrored, below.
type async struct{ *Locker }

func (m async) acquire(ctx context.Context, r request) (*Lease, error) {
	var fellBack error // with the circuit breaker open, and no answer from the secondary
	if refusal := m.primary.health.refusal(r.key); refusal != nil {
		ls := m.newLease(ctx, r)
		ls, err := m.bySecondary(ctx, ls, m.primary.wrap(OpLock, ls.claim, refusal))
		if err == nil || errors.Is(err, ErrBusy) || ctx.Err() != nil {
			m.primary.health.bypassed()
			return ls, err
		}
		fellBack = err // without the secondary's answer, the primary is worth an attempt
	}
	ls := m.newLease(ctx, r)
	a, err := m.askPrimary(ctx, ls)
	switch {
	case err != nil:
		return nil, m.rollBack(ls, err)
	case a.err != nil && fellBack != nil:
		return nil, m.rollBack(ls, fellBack)
	case a.err != nil:
		return m.bySecondary(ctx, ls, a.err)
	}
	ls.grantedBy(a)
	if suspicion := m.suspects.of(r.key); r.both || suspicion.degree != trustedKey || m.secondary.background.behind() {
		if err := m.mayStart(ctx, ls, r, suspicion); err != nil {
			return nil, err
		}
	}
	ls, err = m.startBy(ls, Primary, a)
	if err == nil {
		m.secondary.background.changed(ls) // its mirror write is due
	}
	return ls, err
}

// mayStart asks the secondary before fn starts, because the stores may disagree about the key, or for r.both, which is as
// after an outage. It is the only place where an answer of the secondary permits a start under the authority of the primary.
// What follows from each answer is a table in docs/how-it-works.md, "Suspect keys".
func (m async) mayStart(ctx context.Context, ls *Lease, r request, suspicion suspicion) error {
	if isOpen := m.secondary.health.refusal(r.key) != nil; isOpen && suspicion.degree != refusedKey {
		return nil // the breaker is open: start without asking
	}
	patience := r.expiry / renewalFraction
	if !r.both && suspicion.degree != refusedKey { // no dearer than what it may find
		patience = min(patience, mirrorGrace)
	}
	if deadline, ok := ctx.Deadline(); ok { // the rest of the caller's time is for fn
		patience = min(patience, time.Until(deadline)/2)
	}
	b, by := m.askWhileRefused(ctx, ls, ls.ends(), patience)
	if b.err != nil { // an earlier claim of the key may have been refused meanwhile
		suspicion = m.suspects.of(r.key)
	}
	switch {
	case ctx.Err() != nil:
		return m.rollBackNow(ctx, ls, newEndedError(ctx, r.key))
	case b.err == nil && b.Held:
		return nil
	case b.err == nil:
		return m.backOff(ctx, ls, b.HeldBy)
	case by != nil: // silence does not revoke what the secondary said before
		return m.backOff(ctx, ls, *by)
	case suspicion.degree == refusedKey:
		ls.backsOff()
		return m.rollBackNow(ctx, ls, &BusyError{Key: r.key, Holder: suspicion.by, poll: true, err: errors.New("the secondary reported this holder, and has not answered since")})
	}
	if IsUnavailable(b.err) { // else its health has reported it
		m.events.emit(ctx, Event{Kind: KindMirrorFailed, Store: Secondary, Op: OpLock, Key: r.key, Took: time.Since(b.sent), Err: b.err})
	}
	return nil
}

// askWhileRefused requests ls of the secondary, again while that refuses, until the grace is over: a refusal may be the
// previous holder's release on its way. It returns the last answer, and the holder that an earlier answer named. ends is
// the wanted end of the record, zero for the whole expiry; patience bounds each request.
func (l *Locker) askWhileRefused(ctx context.Context, ls *Lease, ends time.Time, patience time.Duration) (answer, *Holder) {
	var refusedUntil time.Time
	var by *Holder
	for {
		b := l.lockInTurn(ctx, ls, ends, min(patience, time.Until(ls.validity(Primary))))
		switch {
		case !refusedUntil.IsZero() && errors.Is(b.err, errContended): // the holder that was named has released
			by = nil
		case b.err != nil || b.Held:
			if b.err == nil {
				l.suspects.hasAgreed(ls.claim.Key)
			}
			return b, by
		case refusedUntil.IsZero():
			refusedUntil = b.sent.Add(graceFor(b.HeldBy))
			fallthrough
		default:
			by = &b.HeldBy
		}
		if left := min(time.Until(refusedUntil), time.Until(ls.validity(Primary))); left <= refusedPause*5/4 {
			return b, by
		}
		if !retry.Sleep(ctx, refusedPause+retry.UpTo(refusedPause/4)) {
			return b, by
		}
	}
}

// renew goes through the authoritative store. What it cannot confirm, the other one may.
func (m async) renew(ctx context.Context, ls *Lease) renewal {
	if ls.authorityNow() == Secondary {
		return m.renewBySecondary(ctx, ls)
	}
	a := m.renewInPrimary(ctx, ls, true)
	if a.err == nil && a.Held {
		return renewedBy(Primary) // the mirror write is due with that
	}
	ls.fallsBack()
	switch {
	case a.err == nil:
		return m.forgotten(ctx, ls)
	case ctx.Err() != nil || ls.ended(): // the release follows at once
		return notRenewed(a.err)
	}
	// The primary is unavailable, or refuses with a permanent error. Within its validity the lock is still ours, so the
	// secondary may record it now if it never did.
	m.suspects.outage(m.longestExpiry())
	b := m.lockInTurn(ctx, ls, time.Time{}, time.Until(ls.validNow()))
	switch {
	case b.err != nil:
		return notRenewed(errors.Join(a.err, b.err))
	case b.Held:
		ls.agreedAgain()
		m.reportRenewed(ls, m.secondary, OpLock, b)
		m.events.emit(ls.ctx, Event{Kind: KindFellBack, Store: Primary, Op: OpExtend, Key: ls.claim.Key, Err: a.err})
		return renewedBy(Secondary)
	}
	m.refused(ls, b) // the mirror write is repeated, and is a conflict when the grace is over
	return notRenewed(conflictWith(b.HeldBy))
}

// forgotten is the renewal of a lease that the primary does not hold any more: it may have granted the key to another
// instance by now. Our record in the secondary, if it stands, makes that instance back off. Without it nothing proves that
// the lock is still ours, and it is not acquired anew behind fn's back. An error is as final here as a no.
func (m async) forgotten(ctx context.Context, ls *Lease) renewal {
	if !ls.stands(m.secondary) {
		return lostBy(ErrNotHeld, lostRecord(Primary))
	}
	b := m.renewInSecondary(ctx, ls)
	if b.err != nil || !b.Held {
		return lostBy(ErrNotHeld, errors.Join(lostRecord(Primary), b.err))
	}
	m.suspects.lost(ls.claim.Key, ls.claim.Expiry)
	m.reportForgotten(ls)
	return renewedBy(Secondary)
}

// renewBySecondary renews a lease in the secondary, and then tries the primary again: a yes makes that authoritative once
// more. A primary that is busy changes nothing: its holder has no record in the secondary, and backs off.
func (m async) renewBySecondary(ctx context.Context, ls *Lease) renewal {
	b := m.renewInSecondary(ctx, ls)
	switch {
	case b.err == nil && !b.Held:
		return lostInSecondary(b)
	case b.err != nil && (ctx.Err() != nil || ls.ended()):
		return notRenewed(b.err)
	case ls.ended():
		return renewedBy(Secondary)
	}
	a := m.renewInPrimary(ctx, ls, true)
	switch {
	case a.err == nil && a.Held:
		return renewedBy(Primary)
	case b.err != nil:
		return notRenewed(errors.Join(a.err, b.err))
	}
	return renewedBy(Secondary)
}

// mirrored takes what the reconciler's write of a live lease came to.
func (m async) mirrored(ls *Lease, b answer) {
	key := ls.claim.Key
	took := time.Since(b.sent)
	switch {
	case b.err != nil:
		if ls.mirrorFailed(b) && IsUnavailable(b.err) { // else its health has reported it
			m.events.emit(ls.base, Event{Kind: KindMirrorFailed, Store: Secondary, Op: OpLock, Key: key, Took: took, Err: b.err})
		}
	case b.Held:
		ls.agreedAgain()
		m.suspects.hasAgreed(key)
		m.events.emit(ls.base, Event{Kind: KindMirrored, Store: Secondary, Op: OpLock, Key: key, Took: took})
	default:
		m.refused(ls, b)
	}
}

// refused takes a refusal of the secondary while the primary is authoritative. It is the only place where a running lease
// is found to conflict: when the refusal has outlasted the grace.
func (m async) refused(ls *Lease, b answer) {
	first, conflict := ls.refusedBy(b)
	if first {
		m.events.emit(ls.base, Event{Kind: KindMirrorFailed, Store: Secondary, Op: OpLock, Key: ls.claim.Key, Took: time.Since(b.sent), Err: conflictWith(b.HeldBy)})
	}
	if conflict {
		ls.conflicts(b.HeldBy)
		return
	}
	m.secondary.background.changed(ls)
}

// release waits for the first attempt in the primary, where that is authoritative. The secondary is released at the same time
// in the background, and waited for if the primary has lost the claim.
//
// Where the secondary is authoritative, it is released first. The other order loses: A's claim is released in the primary;
// B acquires there, learns A's token (Grant.Released) and replaces A's record in the secondary (Claim.Supersedes); A's release
// finds nothing in the secondary, and A is told that its lock was lost.
func (m async) release(ls *Lease) {
	if ls.authorityNow() == Secondary {
		m.releaseBySecondary(ls)
		return
	}
	m.secondary.background.changed(ls) // in the background; a closure that ended before its mirror write began needs none
	if m.primary.background.releaseNow(ls) != foundNothing {
		return
	}
	// The primary has lost the claim. Where the secondary's record stood to the end, it kept others out.
	if m.secondary.background.releaseNow(ls) == foundClaim {
		m.suspects.lost(ls.claim.Key, ls.claim.Expiry)
		ls.keepAgain(m.primary)
		return
	}
	ls.wasLost(Primary)
}

// releaseBySecondary releases a lease that relied on the secondary, and then what may be in the primary. The caller waits for
// both, but not once more for a primary that was silent.
func (l *Locker) releaseBySecondary(ls *Lease) {
	l.primary.background.changed(ls) // a minimum hold; the release has to wait
	found := l.secondary.background.releaseNow(ls)
	ls.releasedInSecondary()
	if found == foundNothing {
		ls.wasLost(Secondary)
	}
	if ls.silent(l.primary) || !ls.sent(l.primary) {
		l.primary.background.changed(ls)
	} else {
		l.primary.background.releaseNow(ls)
	}
}
