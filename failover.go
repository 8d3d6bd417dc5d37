package loki

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

var errOver = errors.New("the lease was over already; a longer expiry leaves a slow store more time")

// request is one acquisition as its caller wants it.
type request struct {
	key     string
	expiry  time.Duration
	limit   time.Time // of the wait, which no attempt looks at; zero if there is none
	minHold time.Duration
	renewal bool
	closure bool

	record   string        // the key of the occurrence's record; empty if there is none
	keep     time.Duration // of that record
	rowFirst bool          // acquire in sync order, whatever the mode
}

// ask asks the stores once for a new claim. It returns a lease that has been started, or an error after which nothing
// is left behind: what may have been recorded is being taken back.
func (l *Locker) ask(ctx context.Context, r request) (*Lease, error) {
	claim := l.newClaim(r.key, r.expiry)
	var fellBack error // with the breaker open, and no store answered
	if refusal := l.primary.health.refusal(r.key); refusal != nil {
		ls, err := l.fallBack(ctx, l.newLease(ctx, claim, r), r, l.primary.wrap(opLock, claim, refusal))
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			l.primary.health.bypassed()
			return ls, err
		}
		fellBack = err
		claim = l.newClaim(r.key, r.expiry) // with the secondary gone too, the primary is worth an attempt
	}
	limit := l.primaryLimit(ctx, r.expiry)
	a := l.primary.lock(ctx, claim, limit)
	if a.cutShort {
		a.err = l.primary.wrap(opLock, claim, &cutShortError{handlersOwn(a.err)})
	}
	refused := a.err == nil && !a.Held
	if refused && !a.unknown() {
		return nil, &BusyError{Key: r.key, Holder: a.HeldBy}
	}
	ls := l.newLease(ctx, claim, r)
	ls.primary.note(a)
	if refused { // an attempt that was not answered may be granted yet, after the holder's release
		l.discard(ls)
		return nil, &BusyError{Key: r.key, Holder: a.HeldBy}
	}
	if a.err == nil && !time.Now().Before(ls.primary.until) {
		a.err = l.primary.wrap(opLock, claim, Unavailable(errOver))
	}
	switch {
	case ctx.Err() != nil:
		l.discard(ls)
		return nil, newEndedError(ctx, r.key)
	case a.err == nil:
		return l.confirm(ctx, ls, r, a)
	case !IsUnavailable(a.err):
		l.discard(ls)
		return nil, &notAcquiredError{key: r.key, why: "the primary refused with a permanent error", errs: a.err}
	case fellBack != nil:
		l.discard(ls)
		return nil, fellBack
	case l.secondary == nil:
		l.discard(ls)
		return nil, &notAcquiredError{key: r.key, why: noStore, errs: a.err, unavailable: true}
	}
	return l.fallBack(ctx, ls, r, a.err)
}

// leastPatience is how long a primary has to be given before its silence says something about it rather than about the
// caller's deadline or expiry.
const leastPatience = 100 * time.Millisecond

// primaryLimit returns how long the primary may take to answer an acquisition: a third of the expiry, so that what it
// grants is worth having, and half of the caller's time where there is a secondary that needs the other half. Without one
// the deadline of ctx is not looked at: a call ends with its ctx anyway, and must be seen to have ended for that reason.
func (l *Locker) primaryLimit(ctx context.Context, expiry time.Duration) time.Duration {
	limit := expiry / RenewalFraction
	if deadline, ok := ctx.Deadline(); ok && l.secondary != nil {
		limit = min(limit, time.Until(deadline)/2)
	}
	return limit
}

// confirm makes a lease of what the primary has granted: at once under MirrorAsync, with the secondary's agreement
// under MirrorSync, and also while there is a doubt about the key.
func (l *Locker) confirm(ctx context.Context, ls *Lease, r request, a answer) (*Lease, error) {
	ls.store, ls.lives, ls.claim.Fence, ls.supersedes = primaryName, primaryName, a.Fence, a.Released
	ls.end, ls.confirmed = ls.primary.until, a.sent
	if l.secondary != nil && (l.mode == MirrorSync || r.rowFirst || l.doubts.about(ls.claim.Key)) {
		if err := l.mirrorFirst(ctx, ls, r); err != nil {
			l.discard(ls)
			select { // waited for: the next caller must not be told "busy" because of us
			case <-ls.settled:
			case <-ctx.Done():
			}
			return nil, err
		}
	}
	due := l.secondary != nil && !ls.secondary.stands // read before the first renewal can write it
	if !ls.start() {
		l.discard(ls)
		return nil, &notAcquiredError{key: r.key, why: "the grant arrived too late", errs: l.primary.wrap(opLock, ls.claim, Unavailable(errOver)), unavailable: true}
	}
	if due {
		l.mirrorWrite(ls)
	}
	return ls, nil
}

// mirrorFirst writes the row before fn starts. Under MirrorAsync a secondary that does not answer is put up with, as
// it would be without the doubt; the write stays due.
func (l *Locker) mirrorFirst(ctx context.Context, ls *Lease, r request) error {
	rowDecides := l.mode == MirrorSync
	var refusedUntil time.Time
	var refusedBy Holder
	for {
		c := ls.claim
		var ends time.Time
		if !rowDecides { // which otherwise has the full expiry: see renewSync
			ends = ls.confirmed.Add(c.Expiry)
		}
		c.Supersedes = ls.supersedes
		limit := time.Until(ls.end)
		if !rowDecides { // the rest of the caller's time is for fn
			limit = min(limit, r.expiry/RenewalFraction)
			if !r.rowFirst { // only a doubt: no dearer than what it may find
				limit = min(limit, MirrorGrace)
			}
			if deadline, ok := ctx.Deadline(); ok {
				limit = min(limit, time.Until(deadline)/2)
			}
		}
		a := l.askSecondary(ctx, c, ends, limit)
		ls.secondary.note(a)
		switch {
		case ctx.Err() != nil:
			return newEndedError(ctx, r.key)
		case a.err == nil && a.Held:
			l.doubts.settle(c.Key)
			if rowDecides {
				ls.end, ls.lives, ls.claim.Fence = ls.secondary.until, secondaryName, a.Fence
			}
			return nil
		case a.err != nil && !rowDecides:
			if IsUnavailable(a.err) { // else its health has reported it
				l.events.emit(ctx, Event{Kind: KindMirrorFailed, Handler: secondaryName, Op: opLock, Key: c.Key, Took: time.Since(a.sent), Err: a.err})
			}
			ls.mirroring.failed, ls.mirroring.pause = true, failedPause
			return nil
		case IsUnavailable(a.err) && !refusedUntil.IsZero():
			return l.yield(ctx, ls, refusedBy) // silence does not revoke what the secondary said before
		case IsUnavailable(a.err):
			return &notAcquiredError{key: r.key, why: "the secondary is unavailable, and MirrorSync needs it", errs: a.err, unavailable: true}
		case a.err != nil:
			return &notAcquiredError{key: r.key, why: "the secondary refused with a permanent error, and MirrorSync needs it", errs: a.err}
		}
		refusedBy = a.HeldBy
		if refusedUntil.IsZero() {
			refusedUntil = a.sent.Add(patience(a))
		}
		if left := min(time.Until(refusedUntil), time.Until(ls.end)); left <= refusedPause*5/4 {
			return l.yield(ctx, ls, refusedBy)
		}
		if !retry.Sleep(ctx, refusedPause+retry.UpTo(refusedPause/4)) {
			return newEndedError(ctx, r.key)
		}
	}
}

// yield is what a lease comes to that has the primary while the secondary knows another holder.
func (l *Locker) yield(ctx context.Context, ls *Lease, to Holder) error {
	l.doubts.raise(ls.claim.Key)
	ls.yielded = true
	conflict := conflictWith(to)
	l.events.emit(ctx, Event{Kind: KindConflict, Handler: secondaryName, Op: opLock, Key: ls.claim.Key, Err: conflict})
	return &BusyError{Key: ls.claim.Key, Holder: to, err: conflict}
}

// fallBack lets the secondary decide, because the primary is unavailable. What the primary may have recorded all the
// same is not taken back while the lease lives: it is the lease's own claim, which goes back to the primary as soon as
// that answers.
//
// A primary that was given hardly any time is not taken for one that is down.
func (l *Locker) fallBack(ctx context.Context, ls *Lease, r request, primaryErr error) (*Lease, error) {
	if !isCutShort(primaryErr) {
		l.doubts.raiseAll()
		l.events.emit(ctx, Event{Kind: KindFellBack, Handler: primaryName, Op: opLock, Key: r.key, Err: primaryErr})
	}
	ls.store, ls.lives = secondaryName, secondaryName
	a := l.askForNew(ctx, ls.claim, r.expiry-Margin(r.expiry))
	ls.secondary.note(a)
	ls.primary.stands = false
	if a.err == nil && a.Held {
		ls.end, ls.confirmed, ls.claim.Fence = ls.secondary.until, a.sent, a.Fence
		if ctx.Err() == nil && ls.start() {
			return ls, nil
		}
		a.err = l.secondary.wrap(opLock, ls.claim, Unavailable(errOver))
	}
	l.discard(ls)
	switch {
	case ctx.Err() != nil:
		return nil, newEndedError(ctx, r.key)
	case a.err == nil:
		return nil, &BusyError{Key: r.key, Holder: a.HeldBy}
	case IsUnavailable(a.err):
		return nil, &notAcquiredError{key: r.key, why: noStore, errs: errors.Join(primaryErr, a.err), unavailable: true}
	}
	return nil, &notAcquiredError{key: r.key, why: "the primary is unavailable, and the secondary refused with a permanent error", errs: errors.Join(primaryErr, a.err)}
}

func conflictWith(h Holder) error {
	if h.ID == "" {
		return errors.New("the secondary reports another holder, which the primary does not know")
	}
	return fmt.Errorf("the secondary reports holder %s, which the primary does not know", quoted(h.ID))
}
