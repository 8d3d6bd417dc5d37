package loki

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var errOver = errors.New("the answer came after the lease was over")

// request is one acquisition as its caller wants it.
type request struct {
	key     string
	expiry  time.Duration
	limit   time.Time // of the wait; zero if there is none
	minHold time.Duration
	renewal bool
	closure bool
}

// ask asks the stores once for a new claim. It returns a lease that has been started, or an error after which nothing
// is left behind: what may have been recorded is being taken back.
func (l *Locker) ask(ctx context.Context, r request) (*Lease, error) {
	claim := Claim{Key: r.key, Token: newToken(), Expiry: r.expiry, Holder: l.holder}
	a := l.primary.lock(ctx, claim, l.primaryLimit(ctx, r.limit, r.expiry))
	if a.err == nil && !a.Held {
		return nil, &BusyError{Key: r.key, Holder: a.HeldBy}
	}
	ls := l.newLease(ctx, claim, r)
	ls.primary.note(a, r.expiry)
	if a.err == nil && !time.Now().Before(ls.primary.until) {
		a.err = l.primary.wrap(opLock, claim, Unavailable(errOver))
	}
	switch {
	case ctx.Err() != nil:
		l.settle(ls)
		return nil, newEndedError(ctx, r.key)
	case a.err == nil:
		return l.confirm(ctx, ls, r, a)
	case !IsUnavailable(a.err):
		l.settle(ls)
		return nil, &mistakeError{key: r.key, errs: a.err}
	case l.secondary == nil:
		l.settle(ls)
		return nil, &unavailableError{key: r.key, errs: a.err}
	}
	return l.fallBack(ctx, ls, r, a.err)
}

// primaryLimit is how long the primary may take to answer an acquisition: a third of the expiry, so that what it grants
// is worth having, and half of the caller's time where there is a secondary that needs the other half.
func (l *Locker) primaryLimit(ctx context.Context, limit time.Time, expiry time.Duration) time.Duration {
	left := untilLimit(limit)
	if l.secondary != nil {
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, time.Until(deadline))
		}
		left /= 2
	}
	return min(left, expiry/RenewalFraction)
}

// untilLimit is what is left of a wait. The deadline of ctx is not looked at: a call ends with its ctx anyway, and
// must be seen to have ended for that reason.
func untilLimit(limit time.Time) time.Duration {
	if limit.IsZero() {
		return noLimit
	}
	return time.Until(limit)
}

const noLimit = time.Duration(1<<63 - 1)

// confirm makes a lease of what the primary has granted: at once under MirrorAsync, with the secondary's agreement
// under MirrorSync, and also while there is a doubt about the key.
func (l *Locker) confirm(ctx context.Context, ls *Lease, r request, a answer) (*Lease, error) {
	ls.store, ls.lives, ls.claim.Fence, ls.supersedes = primaryName, primaryName, a.Fence, a.Released
	ls.end, ls.confirmed = ls.primary.until, a.sent
	if l.secondary != nil && (l.mode == MirrorSync || l.doubts.about(ls.claim.Key)) {
		if err := l.mirrorFirst(ctx, ls, r); err != nil {
			l.settle(ls)
			if ctx.Err() == nil {
				<-ls.settled // the next caller must not be told "busy" because of us
			}
			return nil, err
		}
	}
	if !ls.start() {
		l.settle(ls)
		return nil, &unavailableError{key: r.key, errs: l.primary.wrap(opLock, ls.claim, Unavailable(errOver))}
	}
	if l.secondary != nil && !ls.secondary.stands {
		l.mirrorWrite(ls)
	}
	return ls, nil
}

// mirrorFirst writes the row before fn starts. Under MirrorAsync a secondary that does not answer is put up with, as
// it would be without the doubt; the write stays due.
func (l *Locker) mirrorFirst(ctx context.Context, ls *Lease, r request) error {
	rowDecides := l.mode == MirrorSync
	refusedUntil := time.Now().Add(MirrorGrace)
	for {
		c := ls.claim
		c.Expiry = ceilMillisecond(c.Expiry - time.Since(ls.confirmed))
		c.Supersedes = ls.supersedes
		limit := min(untilLimit(r.limit), time.Until(ls.end))
		if !rowDecides {
			limit = min(limit, r.expiry/RenewalFraction)
		}
		a := l.askSecondary(ctx, c, limit)
		ls.secondary.note(a, c.Expiry)
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
			l.events.emit(ctx, Event{Kind: KindMirrorFailed, Handler: secondaryName, Op: opLock, Key: c.Key, Took: time.Since(a.sent), Err: a.err})
			ls.mirroring.failed, ls.mirroring.pause = true, failedPause
			return nil
		case IsUnavailable(a.err):
			return &unavailableError{key: r.key, errs: a.err}
		case a.err != nil:
			return &mistakeError{key: r.key, errs: a.err}
		}
		if left := min(time.Until(refusedUntil), untilLimit(r.limit), time.Until(ls.end)); left <= refusedPause {
			l.doubts.raise(c.Key)
			conflict := conflictWith(a.HeldBy)
			l.events.emit(ctx, Event{Kind: KindConflict, Handler: secondaryName, Op: opLock, Key: c.Key, Err: conflict})
			return &BusyError{Key: r.key, Holder: a.HeldBy, err: conflict}
		}
		if !sleep(ctx, refusedPause+rand.N(refusedPause/4)) {
			return newEndedError(ctx, r.key)
		}
	}
}

// fallBack lets the secondary decide, because the primary is unavailable. What the primary may have recorded all the
// same is not taken back while the lease lives: it is the lease's own claim, which goes back to the primary as soon as
// that answers.
func (l *Locker) fallBack(ctx context.Context, ls *Lease, r request, primaryErr error) (*Lease, error) {
	l.doubts.raiseAll()
	l.events.emit(ctx, Event{Kind: KindFellBack, Handler: primaryName, Op: opLock, Key: r.key, Err: primaryErr})
	ls.store, ls.lives = secondaryName, secondaryName
	a := l.askSecondary(ctx, ls.claim, min(untilLimit(r.limit), r.expiry-Margin(r.expiry)))
	ls.secondary.note(a, r.expiry)
	ls.primary.stands = false
	if a.err == nil && a.Held {
		ls.end, ls.confirmed, ls.claim.Fence = ls.secondary.until, a.sent, a.Fence
		if ctx.Err() == nil && ls.start() {
			return ls, nil
		}
		a.err = l.secondary.wrap(opLock, ls.claim, Unavailable(errOver))
	}
	l.settle(ls)
	switch {
	case ctx.Err() != nil:
		return nil, newEndedError(ctx, r.key)
	case a.err == nil:
		return nil, &BusyError{Key: r.key, Holder: a.HeldBy}
	case IsUnavailable(a.err):
		return nil, &unavailableError{key: r.key, errs: errors.Join(primaryErr, a.err)}
	}
	return nil, &mistakeError{key: r.key, errs: errors.Join(primaryErr, a.err)}
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
		b := l.renewRow(ctx, ls, ls.claim.Expiry)
		if b.err != nil || !b.Held {
			return verdict{reason: ErrNotHeld, err: b.err}
		}
		l.doubts.raise(ls.claim.Key)
		return confirmedBy(secondaryName, b, ls.claim.Expiry)
	}
	if ctx.Err() != nil {
		return verdict{err: a.err}
	}
	// Unavailable. Inside the window the lock is still ours, so that the row may be written now if it never was.
	l.doubts.raiseAll()
	b := l.renewRow(ctx, ls, ls.claim.Expiry)
	switch {
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	case b.Held:
		return confirmedBy(secondaryName, b, ls.claim.Expiry)
	}
	return l.refused(ls, b)
}

// refused is a row that is somebody else's while the lease lives in the primary: a conflict once the grace is over.
// Until then it may be a release on its way.
func (l *Locker) refused(ls *Lease, a answer) verdict {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mirroring.refused.IsZero() {
		ls.mirroring.refused = time.Now()
		l.events.emit(ls.ctx, Event{Kind: KindConflict, Handler: secondaryName, Op: opLock, Key: ls.claim.Key, Err: conflictWith(a.HeldBy)})
	}
	if time.Since(ls.mirroring.refused) < MirrorGrace {
		return verdict{err: conflictWith(a.HeldBy)}
	}
	l.doubts.raise(ls.claim.Key)
	return verdict{reason: ErrConflict, err: conflictWith(a.HeldBy)}
}

// renewByRow renews a lease that lives in the secondary, and then tries to take the primary again. Who holds the row
// does not yield because the primary is busy: whoever holds that has no row, and will.
func (l *Locker) renewByRow(ctx context.Context, ls *Lease) verdict {
	b := l.renewRow(ctx, ls, ls.claim.Expiry)
	if b.err == nil && !b.Held {
		return verdict{reason: ErrNotHeld, err: conflictWith(b.HeldBy)}
	}
	if ctx.Err() != nil {
		return verdict{err: b.err}
	}
	a := l.renewPrimary(ctx, ls, 2)
	switch {
	case a.err == nil && a.Held:
		return confirmedBy(primaryName, a, ls.claim.Expiry)
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	}
	return confirmedBy(secondaryName, b, ls.claim.Expiry)
}

// renewSync renews a lease that is protected by its row. The primary is renewed first, so that the row, which gets
// what is left, does not outlive it; its answer counts unless it is a mistake, which nobody would notice otherwise.
func (l *Locker) renewSync(ctx context.Context, ls *Lease) verdict {
	left, sent := ls.claim.Expiry, time.Now()
	a := l.renewPrimary(ctx, ls, 2)
	if a.err == nil && a.Held {
		sent = a.sent
		left = ceilMillisecond(left - time.Since(sent))
	}
	if ctx.Err() != nil || left <= 0 || a.err != nil && !IsUnavailable(a.err) {
		return verdict{err: a.err}
	}
	b := l.renewRow(ctx, ls, left)
	switch {
	case b.err != nil:
		return verdict{err: errors.Join(a.err, b.err)}
	case !b.Held:
		return verdict{reason: ErrConflict, err: conflictWith(b.HeldBy)}
	}
	return verdict{store: secondaryName, sent: sent, end: windowEnd(b.sent, left)}
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
	ls.primary.note(a, ls.claim.Expiry)
	ls.mu.Unlock()
	l.renewed(ls, primaryName, op, a)
	return a
}

// renewRow writes the lease's row for what is left, in its turn.
func (l *Locker) renewRow(ctx context.Context, ls *Lease, left time.Duration) answer {
	c := ls.claim
	c.Expiry = left
	c.Supersedes = ls.supersedes
	ls.mu.Lock()
	limit := time.Until(ls.end)
	ls.mu.Unlock()
	a := l.askSecondary(ctx, c, limit)
	ls.mu.Lock()
	ls.secondary.note(a, left)
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

func confirmedBy(name string, a answer, expiry time.Duration) verdict {
	return verdict{store: name, sent: a.sent, end: windowEnd(a.sent, expiry)}
}

func conflictWith(h Holder) error {
	if h.ID == "" {
		return errors.New("the secondary holds it for somebody whom the primary does not know")
	}
	return fmt.Errorf("the secondary holds it for %s, whom the primary does not know", h.ID)
}

// maxSettledKeys bounds the memory of doubts: what is forgotten is doubted again, which costs a round trip.
const maxSettledKeys = 10_000

// doubts remembers for which keys the two stores may disagree: all of them after an outage of the primary, one after a
// conflict. Such a key is acquired in sync order, the row before fn, until one mirror write has succeeded.
type doubts struct {
	mu      sync.Mutex
	all     bool
	settled map[string]struct{} // since all was raised
	keys    map[string]struct{}
}

func (d *doubts) about(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.keys[key]; ok {
		return true
	}
	_, ok := d.settled[key]
	return d.all && !ok
}

func (d *doubts) raise(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		d.keys = make(map[string]struct{})
	}
	d.keys[key] = struct{}{}
	if len(d.keys) > maxSettledKeys {
		d.all, d.keys, d.settled = true, nil, nil
	}
}

func (d *doubts) raiseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = true
	clear(d.settled)
}

func (d *doubts) settle(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.keys, key)
	if !d.all {
		return
	}
	if d.settled == nil || len(d.settled) >= maxSettledKeys {
		d.settled = make(map[string]struct{})
	}
	d.settled[key] = struct{}{}
}
