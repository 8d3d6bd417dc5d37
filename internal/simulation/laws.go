package simulation

import (
	"errors"
	"time"

	"github.com/lokilock/loki"
)

// What docs/guarantees.md promises, in numbers.
const (
	grace        = 250 * time.Millisecond // for which a refused mirror write is tried again, and in which one begins
	longestBreak = 3 * time.Second        // for which a primary is left alone that is back
)

// roundTrip is how long a request takes on a link that is fine, at most.
func (w *world) roundTrip(at int) time.Duration {
	return 2 * (latency + w.schedule.Stores[at].Distance)
}

// forgotten is for how long after a fault something of it may be left: a record of an outage, a request that lands late
// and its record, a release that is tried again.
func (w *world) forgotten() time.Duration { return 2*w.schedule.Expiry + w.settles() }

// judgeProgress is the law that somebody who wants a lock runs within two expiries of the end of the faults.
func (w *world) judgeProgress() {
	const slack = time.Second
	free := 2*w.schedule.Expiry + slack
	busy := make(map[string][]span)
	for _, r := range w.runs {
		busy[r.key] = append(busy[r.key], span{r.start, max(r.end, r.start)})
	}
	for _, a := range w.attempts {
		if a.ended || a.process.hasCrashed() || !errors.Is(a.err, loki.ErrBusy) && !errors.Is(a.err, loki.ErrUnavailable) {
			continue
		}
		for _, calm := range w.calms {
			from := max(a.start-free, calm.from+2*longestBreak)
			if a.end > calm.to || a.end-from < free {
				continue
			}
			idle := true
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
	if w.schedule.Mode != Async {
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
