package loki

import (
	"context"
	"errors"
	"time"
)

// verdict is what a round of renewal came to.
type verdict struct {
	store  string    // confirmed: by whom
	sent   time.Time // confirmed: when the request was sent
	end    time.Time // confirmed: the new end of the window; zero if not confirmed
	reason error     // final: why the lease is lost; nil if it is not
	err    error     // what a store said; transient where there is no reason
}

func confirmedBy(name string, a answer, expiry time.Duration) verdict {
	return verdict{store: name, sent: a.sent, end: windowEnd(a.sent, expiry)}
}

// renew asks the stores once to go on with a lease.
func (l *Locker) renew(ctx context.Context, ls *Lease) verdict {
	switch {
	case l.secondary == nil:
		a := l.renewPrimary(ctx, ls, 1)
		switch {
		case a.err != nil:
			return verdict{err: a.err}
		case !a.Held:
			return verdict{reason: ErrNotHeld}
		}
		return confirmedBy(primaryName, a, ls.claim.Expiry)
	case l.mode == MirrorSync:
		return l.renewSync(ctx, ls)
	}
	ls.mu.Lock()
	byPrimary := ls.primary.stands
	ls.mu.Unlock()
	if byPrimary {
		return l.renewAsync(ctx, ls)
	}
	return l.renewByRow(ctx, ls)
}

// renewAsync renews a lease that lives in the primary. The secondary is asked only if the primary does not confirm it.
func (l *Locker) renewAsync(ctx context.Context, ls *Lease) verdict {
	a := l.renewPrimary(ctx, ls, 2)
	switch {
	case a.err == nil && a.Held:
		l.mirrorWrite(ls)
		return confirmedBy(primaryName, a, ls.claim.Expiry)
	case a.err == nil:
		// The primary has forgotten the claim, and may have granted the key to somebody else by now. Our row, if it
		// stands, makes them yield; without it there is nothing to go on by, and nothing is taken anew behind fn's
		// back. An error is as final here as a no: nobody knows who is right, so the lease ends.
		ls.mu.Lock()
		rowStands := ls.secondary.stands && time.Now().Before(ls.secondary.until)
		ls.mu.Unlock()
		if !rowStands {
			return verdict{reason: ErrNotHeld}
		}
		b := l.renewRow(ctx, ls)
		if b.err != nil || !b.Held {
			return verdict{reason: ErrNotHeld, err: b.err}
		}
		l.doubts.raise(ls.claim.Key)
		l.forgotten(ls)
		return l.confirmedByRow(ls, b)
	}
	if ctx.Err() != nil {
		return verdict{err: a.err}
	}
	// Unavailable. Inside the window the lock is still ours, so that the row may be written now if it never was.
	l.doubts.raiseAll()
	b := l.renewRow(ctx, ls)
	switch {
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	case b.Held:
		return l.moved(ls, l.confirmedByRow(ls, b), a.err)
	}
	return l.refused(ls, b)
}

// confirmedByRow is confirmedBy, for the row's full expiry, by a secondary that may have earlier requests on their way.
func (l *Locker) confirmedByRow(ls *Lease, b answer) verdict {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return confirmedBy(secondaryName, b, ls.secondary.sure(ls.claim.Expiry))
}

// forgotten reports that the primary no longer holds a claim whose lease goes on by its row: it restarted empty, or someone
// removed the key. Usually it has forgotten every claim, and one report is enough.
func (l *Locker) forgotten(ls *Lease) {
	ls.mu.Lock()
	expired := !time.Now().Before(ls.primary.until)
	ls.mu.Unlock()
	if expired { // after an outage in which it could not be renewed
		return
	}
	e := Event{Kind: KindForgotten, Level: levelDebug, Handler: primaryName, Op: opExtend, Key: ls.claim.Key, Err: ErrNotHeld}
	if l.primary.health.news(string(e.Kind), "", "") {
		e.Level = levelWarn
	}
	l.events.emit(ls.ctx, e)
}

// moved reports, once, that a lease relies on the secondary from now on, because the primary is unavailable.
func (l *Locker) moved(ls *Lease, v verdict, why error) verdict {
	ls.mu.Lock()
	first := ls.lives != secondaryName
	ls.mu.Unlock()
	if first {
		l.events.emit(ls.ctx, Event{Kind: KindFellBack, Handler: primaryName, Op: opExtend, Key: ls.claim.Key, Err: why})
	}
	return v
}

// refused is a row that is somebody else's while the lease lives in the primary. It may be a release on its way, so the
// row is tried again like any refused mirror write, and is a conflict when the grace is over.
func (l *Locker) refused(ls *Lease, a answer) verdict {
	conflict := conflictWith(a.HeldBy)
	ls.mu.Lock()
	first := ls.mirroring.refused.IsZero()
	if first {
		ls.mirroring.refused, ls.mirroring.by, ls.mirroring.bears = time.Now(), a.HeldBy, patience(a)
	}
	if !ls.ended {
		l.mirrorAgain(ls, refusedPause)
	}
	ls.mu.Unlock()
	if first {
		l.events.emit(ls.ctx, Event{Kind: KindConflict, Handler: secondaryName, Op: opLock, Key: ls.claim.Key, Err: conflict})
	}
	return verdict{err: conflict}
}

// renewByRow renews a lease that lives in the secondary, and then tries to take the primary again. Who holds the row
// does not yield because the primary is busy: whoever holds that has no row, and will.
func (l *Locker) renewByRow(ctx context.Context, ls *Lease) verdict {
	b := l.renewRow(ctx, ls)
	if b.err == nil && !b.Held {
		return verdict{reason: ErrNotHeld, err: conflictWith(b.HeldBy)}
	}
	if b.err != nil && ctx.Err() != nil {
		return verdict{err: b.err}
	}
	a := l.renewPrimary(ctx, ls, 2)
	switch {
	case a.err == nil && a.Held:
		return confirmedBy(primaryName, a, ls.claim.Expiry)
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	}
	return l.confirmedByRow(ls, b)
}

// renewSync renews a lease that is protected by its row. The primary's answer counts unless it is a mistake, which nobody
// would notice otherwise. The row gets the full expiry, not what is left of the primary's: a request for less that is
// given up, and lands after the next renewal was confirmed, would shorten the row below the window of the lease.
func (l *Locker) renewSync(ctx context.Context, ls *Lease) verdict {
	ls.mu.Lock()
	stood := ls.primary.stands
	ls.mu.Unlock()
	a := l.renewPrimary(ctx, ls, 2)
	if ctx.Err() != nil || a.err != nil && !IsUnavailable(a.err) {
		return verdict{err: a.err}
	}
	b := l.renewRow(ctx, ls)
	switch {
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	case !b.Held:
		return verdict{reason: ErrConflict, err: conflictWith(b.HeldBy)}
	}
	if stood && a.err == nil && !a.Held {
		l.forgotten(ls)
	}
	return l.confirmedByRow(ls, b)
}

// renewPrimary extends the claim in the primary, or takes it there again if the lease lives in the secondary: with the
// same token, and inside the window, so that it is still ours to take. It may use one share of what is left of the
// window; the rest is for the secondary.
func (l *Locker) renewPrimary(ctx context.Context, ls *Lease, shares int) answer {
	ls.mu.Lock()
	stands := ls.primary.stands
	limit := min(time.Until(ls.end)/time.Duration(shares), ls.claim.Expiry/RenewalFraction)
	ls.mu.Unlock()
	op, ask := opLock, l.primary.lock
	if stands {
		op, ask = opExtend, l.primary.extend
	}
	a := ask(ctx, ls.claim, limit)
	ls.mu.Lock()
	ls.primary.note(a)
	ls.mu.Unlock()
	l.renewed(ls, primaryName, op, a)
	return a
}

// renewRow writes the lease's row for its full expiry, in its turn.
func (l *Locker) renewRow(ctx context.Context, ls *Lease) answer {
	c := ls.claim
	c.Supersedes = ls.supersedes
	ls.mu.Lock()
	limit := time.Until(ls.end)
	ls.mu.Unlock()
	a := l.askSecondary(ctx, c, time.Time{}, limit)
	ls.mu.Lock()
	ls.secondary.note(a)
	if a.err == nil && a.Held {
		ls.mirroring.refused, ls.mirroring.failed = time.Time{}, false
	}
	ls.mu.Unlock()
	l.renewed(ls, secondaryName, opLock, a)
	return a
}

func (l *Locker) renewed(ls *Lease, handler, op string, a answer) {
	if a.err == nil && a.Held {
		l.events.emit(ls.ctx, Event{Kind: KindRenewed, Handler: handler, Op: op, Key: ls.claim.Key, Took: time.Since(a.sent)})
	}
}
