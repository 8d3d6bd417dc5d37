package loki

import (
	"context"
	"slices"
	"time"
)

// Hand-over inside the process: a lease that ends while callers of the same Locker wait for its key goes to the first of them with
// its claim, and no store is asked. docs/how-it-works.md says when, in "Waiters".

// handOver gives the claim of ls to the first caller that waits for its key, without a request to a store. It reports false
// if there is none, or that is not possible: then ls is to be released.
func (l *Locker) handOver(ls *Lease) bool {
	if !l.keys.handOver(ls) {
		return false
	}
	l.forget(ls)
	ls.cancel(nil)
	return true
}

func (g *keyTable) handOver(ls *Lease) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[ls.claim.Key]
	if k == nil || k.holder != ls || len(k.waiters) == 0 || k.waiters[0].asks {
		return false
	}
	w := k.waiters[0]
	next := ls.handOver(w.ctx, w.request)
	if next == nil {
		return false
	}
	k.holder, k.since = next, time.Now()
	k.waiters = slices.Delete(k.waiters, 0, 1)
	w.handed = next
	close(w.granted)
	g.tidy(ls.claim.Key, k)
	return true
}

// handOverFor is for how long a claim goes from one caller of a Locker to the next before it is released in the stores, where
// other processes may wait. It is short beside the wait of a person, and long beside a request to a store: to keep the claim
// of a job that took longer would save little.
const handOverFor = 100 * time.Millisecond

// handOver ends the lease and returns one for r that goes on with its claim: the token, the fencing token, and what is known of
// the records in the stores. It returns nil, and nothing has happened, unless there is nothing else to know: every store has
// confirmed what is wanted of it, no request is under way, and the first renewal is not due, so that two thirds of the expiry
// are left.
func (ls *Lease) handOver(ctx context.Context, r request) *Lease {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	switch {
	case ls.over || ls.failed || ls.queued || ls.renewing != nil || ls.refusal != nil,
		!r.mayShare() || r.expiry != ls.claim.Expiry,
		now.Sub(ls.startedAt) >= handOverFor || !now.Before(ls.renewAt):
		return nil
	}
	for _, s := range ls.locker.stores() {
		in := ls.record(s.name)
		end, _ := ls.wants(s.name)
		settled := end.IsZero() || in.agreed && in.agreedEnd.Equal(end)
		if in.inFlight > 0 || in.mayMove.After(now) || !settled {
			return nil
		}
	}
	next := ls.locker.leaseOf(ctx, r, ls.claim)
	next.primary, next.secondary, next.authority = ls.primary, ls.secondary, ls.authority
	next.fence, next.store, next.replaces = ls.fence, ls.store, ls.replaces
	next.startedAt, next.took, next.renewAt, next.handed = ls.startedAt, ls.took, ls.renewAt, true
	next.used.Store(true) // code has run under the claim
	ls.primary, ls.secondary = record{}, record{}
	ls.over = true
	ls.locker.agenda.Stop(&ls.due)
	close(ls.released)
	next.mu.Lock() // its timer may be due
	defer next.mu.Unlock()
	next.begin()
	return next
}

// handedOver returns after what time the callers of this process ask the stores for a key that was handed over, when it is
// free: those of other processes have their turn first. The time covers the release and the other's request.
func (ls *Lease) handedOver() (pause time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.handed {
		return 0
	}
	return min(firstPollPause+2*ls.took, maxPollPause)
}
