package memhandler

// This file is the memory: what is known of a key, and how it is forgotten without a goroutine to do it.

import (
	"container/heap"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
)

// sweepPerCall is how many records that are due one call moves on. A call adds one at most, so two would keep up; the
// rest catches up after a pause, without one unlucky caller paying for all of it.
const sweepPerCall = 4

// record is what is known of one key: the claim that holds it, or what is remembered of those that did.
type record struct {
	key   string
	claim loki.Claim // no token: nobody holds the key
	fence int64      // the last one issued
	since time.Time  // the first grant of claim

	released      string
	releasedUntil time.Time

	due   time.Time // the claim's expiry; without a claim, when to forget the record
	place int       // in the queue that it is in
}

func (r *record) heldBy(token string) bool { return r != nil && token != "" && r.claim.Token == token }

// holder tells wall times only: they are for people, and a monotonic reading would print as noise. What is left is for
// clients, and does not change when the clock is set.
func (r *record) holder(now time.Time) loki.Holder {
	return loki.Holder{ID: r.claim.Holder, Since: r.since.Round(0), Until: r.due.Round(0), Left: r.due.Sub(now)}
}

func (r *record) lastReleased(now time.Time) string {
	if now.Before(r.releasedUntil) {
		return r.released
	}
	return ""
}

// find returns the record of key, nil if there is none. A claim that has expired is ended first: whoever looks at a
// claim in a record looks at one that holds.
func (h *Handler) find(key string, now time.Time) *record {
	h.sweep(now)
	r := h.keys[key]
	if r != nil && r.claim.Token != "" && !now.Before(r.due) {
		h.end(r, r.due)
	}
	return r
}

// add makes room for a key that is not known.
func (h *Handler) add(r *record) {
	if h.keys == nil {
		h.keys = make(map[string]*record)
	}
	h.keys[r.key] = r
	heap.Push(&h.past, r)
}

// take gives r, which nobody holds or whose claim is superseded, to c.
func (h *Handler) take(r *record, c loki.Claim, now time.Time) {
	if r.claim.Token == "" {
		heap.Remove(&h.past, r.place)
	} else {
		heap.Remove(&h.held, r.place)
	}
	r.since = now
	r.fence = max(r.fence+1, now.UnixMicro())
	h.hold(r, c, now)
	heap.Push(&h.held, r)
}

// renew starts the expiry of the claim that holds r anew.
func (h *Handler) renew(r *record, c loki.Claim, now time.Time) {
	h.hold(r, c, now)
	heap.Fix(&h.held, r.place)
}

// hold writes c into r. Those who wait for the expiry of the claim in it, be it c's own or a superseded one, are told
// if c's is earlier.
func (h *Handler) hold(r *record, c loki.Claim, now time.Time) {
	due := now.Add(retry.CeilMillisecond(c.Expiry))
	if r.claim.Token != "" && due.Before(r.due) {
		h.tell(r.key)
	}
	r.claim, r.due = c, due
	r.fence = max(r.fence, c.Fence)
}

// end takes the claim out of r. It was over at the time at, which is in the past if it expired.
func (h *Handler) end(r *record, at time.Time) {
	heap.Remove(&h.held, r.place)
	r.claim = loki.Claim{}
	r.due = at.Add(RememberFor)
	if r.due.Before(r.releasedUntil) {
		r.due = r.releasedUntil
	}
	heap.Push(&h.past, r)
}

// sweep moves on what is due, in passing: expired claims to the past, and the oldest of the past out of memory.
func (h *Handler) sweep(now time.Time) {
	for range sweepPerCall {
		switch {
		case len(h.held) > 0 && !now.Before(h.held[0].due):
			h.end(h.held[0], h.held[0].due)
		case len(h.past) > RememberKeys, len(h.past) > 0 && !now.Before(h.past[0].due):
			delete(h.keys, heap.Pop(&h.past).(*record).key)
		default:
			return
		}
	}
}

// queue is a heap of records, the one that is due first in front.
type queue []*record

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
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
