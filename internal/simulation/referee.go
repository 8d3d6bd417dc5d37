package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
)

// detected is how long an overlap under MirrorAsync may go on while every instance reaches the secondary. A mirror write
// that was given to a link when it was broken has its expiry to come back, is due again after a third of that, and is
// refused for the grace, or for twice that if the record is about to expire.
func (w *world) detected() time.Duration {
	return w.schedule.Expiry + w.schedule.Expiry/2 + 2*grace
}

// settles is how long a claim may stay in a store, which can be reached, after its call has returned: the longest pause
// between two tries of a release, behind one request that hangs and one that comes late.
func (w *world) settles() time.Duration {
	pause := max(50*time.Millisecond, w.schedule.Expiry/8)
	return loki.DefaultSecondaryTimeout + latest + pause + pause/4 + time.Second
}

// audit looks at the stores, now and then, until ctx ends.
func (w *world) audit(ctx context.Context) {
	for retry.Sleep(ctx, 487*time.Millisecond) {
		for at, s := range w.stores {
			for _, key := range s.locks() {
				w.auditLock(ctx, at, key)
			}
		}
	}
}

func (w *world) auditLock(ctx context.Context, at int, key string) {
	token := w.stores[at].holds(ctx, key)
	w.mu.Lock()
	e, over := w.ended[token]
	w.mu.Unlock()
	if !over || e.process.hasCrashed() {
		return
	}
	since, ok := e.process.wires[at].fineSince()
	if left := w.now() - max(e.at, e.hold, since); ok && left > w.settles() {
		w.mu.Lock()
		w.ended[token] = ended{e.at, never, e.process} // once is enough
		w.mu.Unlock()
		w.breach("%s left a claim of %s in the %s: its call has returned at %v, and the link is fine since %v", e.process.name, key, storeNames[at], e.at, since)
	}
}

// judge says what came of it.
func (w *world) judge() Result {
	if w.reaching >= 0 {
		w.reached = append(w.reached, span{w.reaching, w.now()})
	}
	w.noteCalm(false)
	slices.SortStableFunc(w.runs, func(a, b *run) int { return int(a.start - b.start) })
	result := Result{Crashes: len(w.crashes)}
	for i, b := range w.runs {
		lost := errors.Is(b.err, loki.ErrLockLost)
		if lost {
			result.Lost++
		}
		result.Runs = append(result.Runs, fmt.Sprintf("%s, %s, %v to %v, fence %d, lost %v", b.process.name, b.key, b.start, b.end, b.fence, lost))
		for _, a := range w.runs[:i] {
			if a.key != b.key {
				continue
			}
			if overlap := (span{b.start, min(a.end, b.end)}); overlap.from < overlap.to {
				result.Overlaps++
				w.judgeOverlap(a, b, overlap)
			} else if a.end <= b.asked && a.fence >= b.fence && b.fence != 0 {
				w.breach("%s ran from %v on with fence %d, and %s from %v on with fence %d", a.process.name, a.start, a.fence, b.process.name, b.start, b.fence)
			}
		}
	}
	w.judgeProgress()
	w.judgeMirrors()
	w.judgeRecords()
	w.judgeOccurrences()
	result.Breaches, result.Laws, result.Story = w.breaches, w.laws, w.story.String()
	return result
}

// judgeOverlap holds two runs at once against the promise of the mode.
func (w *world) judgeOverlap(a, b *run, o span) {
	if w.schedule.Mode != Async {
		w.breach("%s and %s ran at once from %v to %v", a.process.name, b.process.name, o.from, o.to)
		return
	}
	for _, s := range w.reached {
		if length := min(o.to, s.to) - max(o.from, s.from); length > w.detected() {
			w.breach("%s and %s ran at once for %v, up to %v, while every instance reached the secondary", a.process.name, b.process.name, length, min(o.to, s.to))
		}
	}
	if o.to-o.from <= 2*grace+100*latency { // one ended in the other's grace, when its record might have been a release on its way: an event tells of it
		return
	}
	told := errors.Is(a.err, loki.ErrLockLost) || errors.Is(b.err, loki.ErrLockLost) || a.crashed || b.crashed
	if !told && a.answered && b.answered && w.reachedAll(o.from-2*w.schedule.Expiry, o.to) {
		w.breach("%s and %s ran at once from %v to %v, the secondary had heard of both, and neither was told: %v, %v", a.process.name, b.process.name, o.from, o.to, a.err, b.err)
	}
}

// reachedAll reports whether every instance reached the secondary all the time.
func (w *world) reachedAll(from, to time.Duration) bool {
	return slices.ContainsFunc(w.reached, func(s span) bool { return s.from <= max(from, 0) && to <= s.to })
}
