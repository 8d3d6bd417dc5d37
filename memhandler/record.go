package memhandler

import (
	"container/heap"
	"container/list"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
)

const (
	// rememberFor is how long the last fencing token of a key outlives the end of its last claim. After that the key
	// starts again from the clock, which is larger unless it stepped back or a claim brought a larger [loki.Claim.Fence].
	rememberFor = 24 * time.Hour

	// rememberKeys is how many keys without a claim are remembered at most, so that a process that locks ever new keys
	// does not grow without end. Beyond it the one that was free for the longest time is forgotten.
	rememberKeys = 65536

	// sweepPerCall is how many records that are due one call moves on. A call adds one at most, so two would keep up; the
	// rest catches up after a pause, without one unlucky caller paying for all of it.
	sweepPerCall = 4
)

// record is what is known of one key: the claim that holds it, or what is remembered of those that did.
type record struct {
	key   string
	fence int64 // the last one issued

	claim loki.Claim // no token: nobody holds the key
	since time.Time  // the first grant of claim
	until time.Time  // the claim's expiry
	place int        // among the records that are held

	past *list.Element // among those that are not; nil while the key is held

	forget        time.Time // when to forget a record of the past
	released      string
	releasedUntil time.Time
}

func (r *record) heldBy(token string) bool { return r != nil && token != "" && r.claim.Token == token }

// holder tells wall times only: they are for people, and a monotonic reading would print as noise. What is left is for
// clients, and does not change when the clock is set.
func (r *record) holder(now time.Time) loki.Holder {
	return loki.Holder{ID: r.claim.Holder, Since: r.since.Round(0), Until: r.until.Round(0), Left: r.until.Sub(now)}
}

func (r *record) lastReleased(now time.Time) string {
	if now.Before(r.releasedUntil) {
		return r.released
	}
	return ""
}

// find returns the record of key, nil if there is none. A claim that has expired is ended first, so a claim in a record
// that find returned holds.
func (h *Handler) find(key string, now time.Time) *record {
	h.sweep(now)
	r := h.keys[key]
	if r != nil && r.past == nil && !now.Before(r.until) {
		h.end(r, r.until)
	}
	return r
}

// take gives r, which nobody holds or whose claim is superseded, to c.
func (h *Handler) take(r *record, c loki.Claim, now time.Time) {
	r.since = now
	r.fence = max(r.fence+1, now.UnixMicro())
	if r.claim.Token != "" {
		h.renew(r, c, now)
		return
	}
	if r.past != nil {
		h.past.Remove(r.past)
		r.past = nil
	}
	r.hold(c, now)
	heap.Push(&h.held, r)
}

// renew writes c into r, which is held. Those who wait for the expiry of the claim in it, be it c's own or a superseded
// one, are woken if c's is earlier.
func (h *Handler) renew(r *record, c loki.Claim, now time.Time) {
	before := r.until
	r.hold(c, now)
	heap.Fix(&h.held, r.place)
	if r.until.Before(before) {
		h.listeners.Wake(r.key)
	}
}

func (r *record) hold(c loki.Claim, now time.Time) {
	r.claim, r.until = c, now.Add(retry.CeilMillisecond(c.Expiry))
	r.fence = max(r.fence, c.Fence)
}

// end takes the claim out of r. It was over at the time at, which is in the past if it expired.
func (h *Handler) end(r *record, at time.Time) {
	heap.Remove(&h.held, r.place)
	r.claim = loki.Claim{}
	r.forget = at.Add(rememberFor)
	if r.forget.Before(r.releasedUntil) {
		r.forget = r.releasedUntil
	}
	r.past = h.past.PushBack(r)
}

// sweep moves on what is due, in passing: expired claims to the past, and the oldest of the past out of memory. A record
// of the past that is kept for longer than usual keeps those behind it, too.
func (h *Handler) sweep(now time.Time) {
	for range sweepPerCall {
		oldest := h.past.Front()
		switch {
		case len(h.held) > 0 && !now.Before(h.held[0].until):
			h.end(h.held[0], h.held[0].until)
		case oldest != nil && (h.past.Len() > rememberKeys || !now.Before(oldest.Value.(*record).forget)):
			delete(h.keys, h.past.Remove(oldest).(*record).key)
		default:
			return
		}
	}
}

// queue is a heap of records that are held, the one that expires first in front.
type queue []*record

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].until.Before(q[j].until) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(x any) {
	r := x.(*record)
	r.place = len(*q)
	*q = append(*q, r)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	r := (*q)[last]
	(*q)[last] = nil // or the array would keep it alive
	*q = (*q)[:last]
	return r
}
