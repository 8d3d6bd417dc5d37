package simulation

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

// What docs/guarantees.md promises, in numbers.
const (
	grace        = 250 * time.Millisecond // for which a refused mirror write is tried again, and in which one begins
	longestBreak = 3 * time.Second        // for which a primary is left alone that is back
	renewals     = 3                      // for each expiry
)

// roundTrip is how long a request takes on a link that is fine, at most.
func (w *world) roundTrip(at int) time.Duration {
	return 2 * (latency + w.schedule.Stores[at].Distance)
}

// forgotten is for how long after a fault something of it may be left: a record of an outage, a request that lands late
// and its record, a release that is tried again.
func (w *world) forgotten() time.Duration { return 2*w.schedule.Expiry + w.settles() }

// hearsOfHolder notes what the secondary says of another holder, and that it says no such thing any more. It is called
// with p.mu held. An answer that takes longer than its caller may have waited is not counted.
func (p *process) hearsOfHolder(l *lock, op lokitest.Op, c loki.Claim, sent time.Duration, a answer) {
	now, left := p.world.now(), a.grant.HeldBy.Left
	if a.grant.HeldBy.ID == "" { // unknown: the caller's expiry
		left = c.Expiry
	}
	until := sent + left
	switch {
	case op != lokitest.OpLock && !a.held:
		return
	case !a.held:
		l.suspect = max(l.suspect, now+left)
	}
	switch {
	case a.held:
		l.named = named{}
	case a.grant.HeldBy.ID != p.name && now-sent <= grace:
		l.named = named{at: now, until: until, text: fmt.Sprintf("%q at %v, until %v", a.grant.HeldBy.ID, now, until)}
	}
}

// hearsLate is hearsOfHolder for an answer that comes when its caller may have gone. A refusal may be counted, and need not
// be; a grant that was sent later than a refusal may end it. It is called with p.mu held.
func (p *process) hearsLate(l *lock, sent time.Duration, a answer) {
	switch left := a.grant.HeldBy.Left; {
	case a.held && l.named.at < sent:
		l.named = named{}
	case !a.held:
		l.suspect = max(l.suspect, p.world.now()+max(left, p.world.schedule.Expiry))
	}
}

// requireNobodyNamed is the law that there is one overlap for one conflict: where the secondary has named another holder,
// nothing starts by the primary alone until the secondary agrees or that record has expired. It is called with p.mu held.
func (p *process) requireNobodyNamed(l *lock, r *run) {
	if p.world.schedule.Mode == Async && l.named.at < r.start && r.start < l.named.until {
		p.world.breach("%s runs although the secondary has named another holder: %s", p.name, l.named.text)
	}
}

// requireFault is the law that an ordinary hand-over is not reported as a loss. It is called with p.mu held.
func (p *process) requireFault(r *run, cause error) {
	w := p.world
	if errors.Is(r.err, loki.ErrExpired) && (r.call.NoRenewal || r.call.Patience > 0) {
		return
	}
	if calm := w.calmSince(); calm+w.forgotten() < r.asked {
		w.breach("%s was told that it lost its lock, and there was no fault since %v: %v (in fn: %v)", p.name, max(calm, 0), r.err, cause)
	}
}

// watchHold is the law that a minimum hold is kept exactly, in each store: not for less, and not for longer but by a
// request that lands late.
func (w *world) watchHold(r *run, c claim) {
	p, token := r.process, r.token
	from, to := r.asked+r.call.MinHold, r.start+r.call.MinHold
	for at, wire := range p.wires {
		if early := from - time.Millisecond - w.now(); early > w.roundTrip(at) {
			w.holds.Go(func() {
				time.Sleep(early)
				relied := w.schedule.Mode == Alone || w.schedule.Mode == Sync && at == secondary || w.schedule.Mode == Async && at == primary && c.kept > r.returned
				since := max(r.end, c.trusted-w.settles()) // in time to set it before the lease's own record has expired
				if !relied {
					since = r.asked - w.forgotten()
				}
				if p.hasCrashed() || p.claimOf(token).refused[at] || !wire.fineDuring(since-w.roundTrip(at), w.now()) || !w.kept(at, r.asked) {
					return
				}
				if w.stores[at].holds(p.ctx, r.key) != token {
					w.breach("%s does not hold %s in the %s any more, and its minimum hold ends at %v", p.name, r.key, storeNames[at], from)
				}
			})
		}
		w.holds.Go(func() {
			late := max(to, r.returned) + 2*w.roundTrip(at) + 2*time.Millisecond // a release is behind a mirror write
			settled := to - w.settles()                                          // whatever was late has landed, and there was time to set it right
			if !wire.fineDuring(r.asked-w.forgotten(), late) && (r.returned > settled || !wire.fineDuring(settled, late)) {
				late += w.settles()
			} else if !wire.fineDuring(r.returned-w.forgotten(), r.returned+w.roundTrip(at)) { // the request that set it may have been slow
				late += latest
			}
			time.Sleep(late - w.now())
			since, ok := wire.fineSince()
			if p.hasCrashed() || !ok || since > max(to, r.returned) || w.stores[at].holds(p.ctx, r.key) != token {
				return
			}
			w.breach("%s still holds %s in the %s, and its minimum hold ended at %v", p.name, r.key, storeNames[at], to)
		})
	}
}

// kept reports whether a store has kept what it knows since a moment.
func (w *world) kept(at int, since time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.forgot[at] < since
}

// judgeProgress is the law that somebody who wants a lock runs within two expiries of the end of the faults.
func (w *world) judgeProgress() {
	const slack = time.Second
	free := 2*w.schedule.Expiry + slack
	busy := make(map[string][]span)
	for _, r := range w.runs {
		end := max(r.end, r.start)
		if r.call.MinHold > 0 {
			end = max(end, r.start+r.call.MinHold)
		}
		busy[r.key] = append(busy[r.key], span{r.start, end})
	}
	for _, a := range w.attempts {
		if a.ended || a.process.hasCrashed() || errors.Is(a.err, loki.ErrDone) || !errors.Is(a.err, loki.ErrBusy) && !errors.Is(a.err, loki.ErrUnavailable) {
			continue
		}
		for _, calm := range w.calms {
			from := max(a.start-free, calm.from+2*longestBreak)
			if a.end > calm.to || a.end-from < free {
				continue
			}
			idle := !slices.ContainsFunc(w.crashes, func(at time.Duration) bool { return from <= at && at <= a.end }) // else a record may be left
			for _, b := range busy[a.key] {
				idle = idle && (b.to < from || b.from > a.end+slack)
			}
			if idle {
				w.breach("%s could not have %s at %v, which nobody held since %v: %v", a.process.name, a.key, a.end, from, a.err)
			}
		}
	}
}

// judgeMirrors is the law on mirror lag: while the secondary answers, a lease that lasts longer than the grace has its
// record there.
func (w *world) judgeMirrors() {
	if w.schedule.Mode != Async {
		return
	}
	for _, r := range w.runs {
		due := r.start + grace + w.roundTrip(secondary) + 50*time.Millisecond
		if r.store != storeNames[primary] || r.crashed || r.end < due || !r.process.wires[secondary].fineDuring(r.asked-w.forgotten(), due) {
			continue
		}
		first := never
		for _, m := range w.stores[secondary].history(r.token) {
			first = min(first, m.at)
		}
		if first > due {
			w.breach("%s runs %s since %v, and the secondary, which answers, had no record of it until %v", r.process.name, r.key, r.start, min(first, r.end))
		}
	}
}

// judgeRecords is the other half of that law: the record is kept while the lease lasts.
func (w *world) judgeRecords() {
	if w.schedule.Mode != Async || w.bursts() {
		return
	}
	for _, r := range w.runs {
		if r.store != storeNames[primary] || r.crashed {
			continue
		}
		until := never
		for _, m := range append(w.stores[secondary].history(r.token), record{at: r.end}) {
			if m.refused || m.at > r.end {
				break
			}
			if gap := (span{until, m.at}); gap.from < gap.to && r.process.wires[secondary].fineDuring(gap.from-w.forgotten(), gap.to) {
				w.breach("%s runs %s from %v to %v, and the secondary, which answers, had no record of it from %v to %v", r.process.name, r.key, r.start, r.end, gap.from, gap.to)
			}
			until = m.until
		}
	}
}

func (w *world) bursts() bool {
	for _, e := range w.schedule.Events {
		if e.What == burst {
			return true
		}
	}
	return false
}

// judgeOccurrences is the law that an occurrence runs at most once where the stores keep what they know.
func (w *world) judgeOccurrences() {
	for i, b := range w.runs {
		for _, a := range w.runs[:i] {
			if b.call.Occurrence == 0 || a.call.Occurrence != b.call.Occurrence || a.key != b.key || a.err != nil || a.crashed || a.returned < 0 || b.start < a.returned {
				continue
			}
			recorded := true
			for at, wire := range a.process.wires { // where they have it from, and that they have had the time
				if w.schedule.Mode != Sync || at == secondary {
					recorded = recorded && wire.fineDuring(a.end, min(a.returned+time.Second, b.start))
				}
			}
			if w.schedule.Mode == Async {
				recorded = recorded && w.calmAll(a.end, b.start)
			}
			if recorded {
				w.breach("%s ran occurrence %d of %s at %v, and %s again at %v", a.process.name, a.call.Occurrence, a.key, a.start, b.process.name, b.start)
			}
		}
	}
}

// calmAll reports whether there was no fault but crashes all the time.
func (w *world) calmAll(from, to time.Duration) bool {
	for _, s := range w.calms {
		if s.from <= from && to <= s.to {
			return true
		}
	}
	return false
}
