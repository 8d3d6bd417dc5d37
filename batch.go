package loki

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Renewals in batches. A process that holds 100,000 leases of thirty seconds makes ten thousand renewals a second: with a
// goroutine, a context, timers and a round trip for each of them, half a core has nothing else to do. So leases whose renewals
// fall due together share one call of a primary that is a [BatchExtender].
//
// A batch is the first attempt of each lease's own call (see store.call), made for all of them, and no more. A lease that gets
// a yes is renewed with that. Any other lease goes on alone, with that attempt as its first one: at once if the answer is an
// error or a no, and when its second attempt is due if there is none. So nothing is decided here, and what a second attempt,
// the loss of a lock or falling back takes is counted from when the batch was sent.

const (
	// maxBatch bounds a batch. The store may serve no other request meanwhile.
	maxBatch = 128

	// maxBatches is how many are under way at once. Other leases wait until one of them has returned.
	maxBatches = 4

	// earlyFraction is the part of the expiry by which a renewal may be brought forward, to be one of a batch. Those of a batch
	// are due together from then on.
	earlyFraction = 48

	// queueFraction is the part of the expiry for which a lease waits for its batch. Then it goes alone.
	queueFraction = 12
)

// batcher makes batches of renewals that are due.
type batcher struct {
	l *Locker

	mu      sync.Mutex // comes after that of a lease; guards what follows
	waiting []*Lease   // those that are due, and some that wait no longer
	sending int        // batches
	late    int        // those of sending that have had no answer by the time of the second attempts
}

// add has a lease wait for a batch: until all is there that is due, see next. It reports false if there is to be none: while
// one is late, the store may be about to fail, and every lease goes alone. It is called with the lease's mutex held.
func (b *batcher) add(ls *Lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.late > 0 {
		return false
	}
	b.waiting = append(b.waiting, ls)
	return true
}

// next sends what waits, as far as batches may be under way. The agenda calls it when all leases have been added that are due.
func (b *batcher) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.sending < maxBatches && len(b.waiting) > 0 {
		n := min(len(b.waiting), maxBatch)
		waiting := b.waiting[:n:n]
		if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
			b.waiting = nil // or the array would keep leases in memory
		}
		b.sending++
		go b.send(waiting)
	}
}

// returned ends a batch, and sends what waits.
func (b *batcher) returned(late bool) {
	b.mu.Lock()
	b.sending--
	if late {
		b.late--
	}
	b.mu.Unlock()
	b.next()
}

// isLate has all leases that wait go alone.
func (b *batcher) isLate() {
	b.mu.Lock()
	b.late++
	waiting := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	for _, ls := range waiting {
		if _, _, waited := ls.leaveQueue(); waited {
			ls.renewAfter(nil)
		}
	}
}

// send makes one batch. What the handler has not returned when the second attempts are due may take as long as any other
// call.
func (b *batcher) send(waiting []*Lease) {
	s := b.l.primary
	leases, claims, limits := waiting[:0], make([]Claim, 0, len(waiting)), make([]time.Duration, 0, len(waiting))
	for _, ls := range waiting {
		c, limit, waited := ls.leaveQueue()
		switch {
		case !waited:
		case limit < leastPatience: // it would hurry the others
			ls.renewAfter(nil)
		default:
			leases, claims, limits = append(leases, ls), append(claims, c), append(limits, min(limit, s.timeout))
		}
	}
	if len(leases) < 2 {
		b.returned(false)
		for _, ls := range leases {
			ls.renewAfter(nil)
		}
		return
	}

	attempts, returned, sent := make([]attempt, len(leases)), make(chan struct{}), time.Now()
	for i := range attempts {
		t := &attempts[i]
		t.key, t.sent, t.limit, t.returned, t.err = claims[i].Key, sent, limits[i], returned, errNoReply
	}
	longest := slices.Max(limits)
	ctx, cancel := context.WithTimeout(context.Background(), longest+linger) //nolint:forbidigo // the callers are many
	late := time.AfterFunc(slices.Min(limits)/repeatFraction, func() {
		b.isLate()
		for i, ls := range leases {
			ls.renewAfter(&attempts[i])
		}
		select {
		case <-ctx.Done():
		case <-s.closing:
			cancel()
		}
	})
	defer func() { // also if the handler ends this goroutine
		cancel()
		inTime := late.Stop()
		close(returned)
		b.returned(!inTime)
		for i, ls := range leases {
			switch t := &attempts[i]; {
			case !t.state.CompareAndSwap(attemptRunning, attemptReturned):
				s.abandoned.add(t.key, -1)
			case !inTime: // its call takes the answer
			case !s.extendsAll():
				ls.renewAfter(nil) // it was not asked
			case t.err == nil && t.grant.Held:
				ls.renewedInBatch(t)
			default:
				ls.renewAfter(t)
			}
		}
	}()
	answers, err := s.extendAll(callContext{ctx, sent.Add(longest)}, claims)
	for i := range attempts {
		if t := &attempts[i]; err == nil {
			t.grant.Held, t.err = answers[i].Held, answers[i].Err
		} else {
			t.err = err
		}
	}
}
