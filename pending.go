package loki

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// MaxPendingReleases is how many claims of one Locker may wait for another try at their release at once: those whose
// release failed and those whose acquisition had an unknown outcome. What comes on top gets its first attempts and is
// then left to expire, and an event says so.
const MaxPendingReleases = 4096

// firstReleasePause is the pause before the first retry of a release. Each further one is twice as long, up to an
// eighth of the expiry: an expiry of a minute sees some sixteen.
const firstReleasePause = 50 * time.Millisecond

var (
	errTooManyReleases = errors.New("loki: too many releases are being retried: this claim is left to expire")
	errFoundNothing    = errors.New("loki: the store did not hold the claim any more: an earlier request had released it, it had expired, or it was lost")
)

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
	valid        time.Time // the end of the lease
	doubtful     bool      // it was never known to be recorded, and a request to record it has an unknown outcome
	tried        bool
	told, failed bool // an event has said so
	counted      bool
}

// finding is what an answer says. That the claim was not held is certain if the release was requested once, or an earlier
// request may have released it, and if the lease was still valid then, or the claim may have expired.
func (p *pendingRelease) finding(a answer) found {
	switch {
	case a.err != nil || !a.reports || !p.stands:
		return unsaid
	case a.Held:
		return held
	case a.repeated || p.tried || !time.Now().Before(p.valid):
		return unsaid
	}
	return notHeld
}

// newRelease is called with ls.mu held.
func (l *Locker) newRelease(ls *Lease, s *store, r record, keep time.Time) *pendingRelease {
	c := ls.claim
	c.Failed = ls.failed || ls.lost != nil
	return &pendingRelease{record: r, locker: l, store: s, ctx: context.WithoutCancel(ls.ctx), claim: c, keep: keep,
		limit: s.timeout, pause: firstReleasePause, valid: ls.end, doubtful: r.open() && !r.stands}
}

// attempt asks the store once, and sees to it that it is asked again where that is not the end of it: after a failure,
// and while a request to record the claim has an unknown outcome. There a nil proves nothing, because that request may
// reach the store after the release did: go-redis goes on retrying on its own, and a command can land after its
// connection is gone.
func (p *pendingRelease) attempt() released {
	p.sort() // before the release is sent: what has been answered by now cannot land after it
	a, kept := p.ask()
	r := released{clean: a.err == nil && !p.open(), found: p.finding(a), err: a.err, until: p.forgets}
	p.tried = true
	switch {
	case a.err == nil && !p.told && !p.doubtful:
		p.told = true
		var err error
		if a.reports && !a.Held {
			err = errFoundNothing
		}
		p.emit(KindReleased, a, err)
	case a.err == nil && !p.told && !kept && len(p.left) == 0:
		p.told = true
		p.emit(KindRolledBack, a, nil)
	case a.err != nil && !p.doubtful && !IsUnavailable(a.err): // that of a rollback is what the acquisition met already
		p.store.health.refused(p.ctx, opRelease, p.claim.Key, a)
	case a.err != nil && !p.failed:
		p.failed = true
		p.emit(KindReleaseFailed, a, a.err)
	}
	switch {
	case r.clean:
		p.end()
	case p.refused && a.err != nil && !IsUnavailable(a.err):
		p.end() // the store refuses the rollback as it has refused the acquisition: there is nothing to roll back
	case len(p.left) > 0:
		p.afterLeft()
	default:
		p.later()
	}
	return r
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
		c.Expiry = retry.CeilMillisecond(left)
		a = p.store.extend(p.ctx, c, p.limit)
		if a.err != nil || a.Held || p.store.extends() {
			if forgets := a.sent.Add(p.limit + c.Expiry); a.records && forgets.After(p.forgets) {
				p.forgets = forgets
			}
			a.reports = p.store.extends()
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
