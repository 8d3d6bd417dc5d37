package loki

import (
	"context"
	"errors"
	"sync"
	"time"
)

// MaxPendingReleases is how many claims of one Locker may wait for another try at their release at once: those whose
// release failed and those whose acquisition had an unknown outcome. What comes on top gets its first attempts and is
// then left to expire, and an event says so.
const MaxPendingReleases = 4096

// firstReleasePause is the pause before the first retry of a release. Each further one is twice as long, up to an
// eighth of the expiry: an expiry of a minute sees some sixteen.
const firstReleasePause = 50 * time.Millisecond

var errTooManyReleases = errors.New("loki: too many releases are being retried: this claim is left to expire")

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
	waitForRow := ls.lives == secondaryName || ls.rowFirst && !ls.secondary.silent
	primary := l.newRelease(ls, l.primary, ls.primary, keep)
	primary.claim.Mirrored = ls.secondary.may
	// Yielding wakes nobody: waiters back off, so that two never chase each other.
	primary.claim.Quiet = ls.yielded || ls.lost != nil && errors.Is(ls.lost, ErrConflict)
	ls.mu.Unlock()

	var row <-chan bool
	if l.secondary != nil {
		row = l.mirrorRelease(ls, keep, waitForRow)
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
		clean = primary.attempt() && clean
	}
	if waitForRow && row != nil {
		clean = <-row && clean
	}
	ls.mu.Lock()
	ls.clean = clean
	ls.mu.Unlock()
}

// settleLater is settle for those who do not wait, or may not be made to.
func (l *Locker) settleLater(ls *Lease) { go l.settle(ls) }

// discard settles a lease that was never started.
func (l *Locker) discard(ls *Lease) {
	l.background.add(1)
	l.settleLater(ls)
}

// maxAbandonedWait is how long Close waits for a call that was left behind, to send the release that has to follow it.
// go-redis, with the settings it comes with, gives up after some sixteen seconds.
const maxAbandonedWait = 30 * time.Second

// pendingRelease is one claim on its way out of one store.
type pendingRelease struct {
	record
	locker *Locker
	store  *store
	ctx    context.Context // the lease's values without its end: a cancelled caller must not leave a lock behind
	claim  Claim
	keep   time.Time // the minimum hold: until then the claim is kept, and for no longer

	limit        time.Duration // of one attempt
	pause        time.Duration
	doubtful     bool // it was never known to be recorded, and a request to record it has an unknown outcome
	told, failed bool // an event has said so
	counted      bool
}

// newRelease is called with ls.mu held.
func (l *Locker) newRelease(ls *Lease, s *store, r record, keep time.Time) *pendingRelease {
	c := ls.claim
	c.Failed = ls.failed || ls.lost != nil
	return &pendingRelease{record: r, locker: l, store: s, ctx: context.WithoutCancel(ls.ctx), claim: c, keep: keep,
		limit: s.timeout, pause: firstReleasePause, doubtful: r.open() && !r.stands}
}

// attempt asks the store once, and sees to it that it is asked again where that is not the end of it: after a failure,
// and while a request to record the claim has an unknown outcome. There a nil proves nothing, because that request may
// reach the store after the release did: go-redis goes on retrying on its own, and a command can land after its
// connection is gone.
//
// It reports whether that was the end of it.
func (p *pendingRelease) attempt() bool {
	p.sort() // before the release is sent: what has been answered by now cannot land after it
	a, kept := p.ask()
	over := a.err == nil && !p.open()
	switch {
	case a.err == nil && !p.told && !p.doubtful:
		p.told = true
		p.emit(KindReleased, a, nil)
	case a.err == nil && !p.told && !kept && len(p.left) == 0:
		p.told = true
		p.emit(KindRolledBack, a, nil)
	case a.err != nil && !p.failed:
		p.failed = true
		if IsUnavailable(a.err) { // else its store's health has reported it
			p.emit(KindReleaseFailed, a, a.err)
		}
	}
	switch {
	case over:
		p.end()
	case p.refused && a.err != nil && !IsUnavailable(a.err):
		p.end() // the store refuses the rollback as it has refused the acquisition: there is nothing to roll back
	case len(p.left) > 0:
		p.afterLeft()
	default:
		p.later()
	}
	return over
}

// afterLeft makes the next attempt when every request that was left has returned. Close waits for that, within reason.
func (p *pendingRelease) afterLeft() {
	counted := sync.OnceFunc(func() { p.locker.background.add(-1) })
	p.locker.background.add(1)
	timer := time.AfterFunc(maxAbandonedWait, counted)
	go func() {
		defer counted()
		defer timer.Stop()
		for _, t := range p.left {
			<-t.returned
		}
		// It may have been recorded as late as now.
		if forgets := time.Now().Add(p.claim.Expiry); forgets.After(p.forgets) {
			p.forgets = forgets
		}
		p.attempt()
	}()
}

// ask releases the claim, or keeps it for what is left of the minimum hold. A store without Extender is asked to Lock
// for that: the claim still holds, so nothing is taken that was not ours.
func (p *pendingRelease) ask() (a answer, kept bool) {
	if left := time.Until(p.keep); !p.keep.IsZero() && left > 0 {
		c := p.claim
		c.Expiry = ceilMillisecond(left)
		a = p.store.extend(p.ctx, c, p.limit)
		if a.err != nil || a.Held || p.store.extends() {
			if forgets := a.sent.Add(p.limit + c.Expiry); a.records && forgets.After(p.forgets) {
				p.forgets = forgets
			}
			return a, true
		}
	}
	return p.store.release(p.ctx, p.claim, p.limit), false
}

// later sets the next attempt, until the store has forgotten the claim by itself.
func (p *pendingRelease) later() {
	if time.Now().Add(p.pause).After(p.forgets) {
		p.end()
		return
	}
	if !p.counted {
		if p.locker.pendingReleases.Add(1) > MaxPendingReleases {
			p.locker.pendingReleases.Add(-1)
			p.emit(KindReleaseFailed, answer{}, errTooManyReleases)
			return
		}
		p.counted = true
	}
	pause := p.pause
	p.pause = min(2*pause, max(firstReleasePause, p.claim.Expiry/8))
	time.AfterFunc(pause, func() { p.attempt() })
}

func (p *pendingRelease) end() {
	if p.counted {
		p.locker.pendingReleases.Add(-1)
		p.counted = false
	}
}

func (p *pendingRelease) emit(kind EventKind, a answer, err error) {
	e := Event{Kind: kind, Handler: p.store.name, Op: opRelease, Key: p.claim.Key, Err: err}
	if !a.sent.IsZero() {
		e.Took = time.Since(a.sent)
	}
	p.locker.events.emit(p.ctx, e)
}

func ceilMillisecond(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d
}
