package loki

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// The pauses between two attempts of a waiter, all jittered so that waiters do not try at the same moment.
const (
	// firstPollPause and maxPollPause are those of a waiter that polls: each is half as long again as the one before.
	firstPollPause = 10 * time.Millisecond
	maxPollPause   = 250 * time.Millisecond

	// recheckPause is that of a waiter which the store's notifier wakes, in case a message was lost.
	recheckPause = 2 * time.Second

	// relistenPause is how long a notifier that could not listen is not asked again.
	relistenPause = 10 * time.Second

	// expirySlack is how long after the holder's expiry a waiter asks: the store may be a moment late to forget.
	expirySlack = 2 * time.Millisecond
)

// wait tries to acquire the lock until a store grants it, ctx or the wait's limit ends, or no store is available.
//
// The limit bounds the waiting, never an attempt: one that has begun is completed, and a caller that knows nothing of the
// key when its limit ends makes the attempt that a call without a wait would have made. So busy is returned only where a
// holder is known, and unavailable only where a store failed or was too slow.
func (l *Locker) wait(ctx context.Context, r request) (ls *Lease, err error) {
	w := l.keys.join(ctx, r)
	shared := false // another waiter met the outage that ends the wait
	defer func() {
		handed := l.keys.leave(w, err, !shared && l.isPatient(ctx, r.expiry))
		if handed == nil {
			return
		}
		if ctx.Err() == nil {
			ls, err = handed, nil // also if the wait has ended for another reason at the same moment
			return
		}
		err = l.waitEnded(ctx, r.key)
		if handed.finishNow(nil) {
			l.releaseLater(handed)
		}
	}()

	var limit <-chan time.Time
	if !r.waitUntil.IsZero() {
		timer := time.NewTimer(time.Until(r.waitUntil))
		defer timer.Stop()
		limit = timer.C
	}
	over := func() bool { return limit != nil && !time.Now().Before(r.waitUntil) }
	poll := time.NewTimer(0) // set while this caller is the first in the wait queue and the store has answered busy
	poll.Stop()
	defer poll.Stop()
	var wakeUps <-chan struct{}
	for pause := firstPollPause; ; {
		l.keys.rests(w)
		select {
		case <-w.granted:
			return nil, nil // leave returns the lease
		case err := <-w.wakeUp:
			if err != nil {
				shared = true
				return nil, err
			}
		case _, ok := <-wakeUps:
			if !ok {
				wakeUps = nil // the notifier has given up: poll
				l.keys.subscriptionEnded(r.key)
			}
		case <-poll.C:
		case <-ctx.Done():
			return nil, l.waitEnded(ctx, r.key)
		case <-limit:
		case <-l.closing:
			return nil, ErrClosed
		}
		if known := l.keys.known(r.key); known != nil && over() {
			return nil, &BusyError{Key: r.key, Holder: *known, err: errWaitOver}
		}
		if !l.keys.asks(w) {
			continue // the end of the lease that holds the key is the next wake-up
		}
		ls, err := l.mode.acquire(ctx, r)
		if err == nil {
			l.hold(ls) // before the queue moves on
			return ls, nil
		}
		busy, ok := errors.AsType[*BusyError](err)
		if ok {
			l.keys.learn(r.key, busy.Holder)
		}
		switch {
		case ctx.Err() != nil:
			return nil, l.waitEnded(ctx, r.key)
		case isCutShort(err) && l.keys.known(r.key) != nil: // nothing was learnt of the holder
			poll.Reset(retry.Around(pause))
			continue
		case !ok || over():
			return nil, err
		}
		if wakeUps == nil {
			n := l.keys.subscribed(r.key, func() *subscription { return l.primary.subscribe(ctx, r.key, untilLimit(r.waitUntil)) })
			if n != nil && n.wakeUps != nil && !n.ended { // what was freed before it listened is found by asking once more
				wakeUps = n.wakeUps
				poll.Reset(0)
				continue
			}
		}
		if wakeUps == nil || busy.poll {
			poll.Reset(retry.Around(pause))
			pause = min(pause*3/2, maxPollPause)
			continue
		}
		next := retry.Around(recheckPause)
		if left := busy.Holder.Left; left > 0 && left < next { // the holder may have crashed
			next = left + expirySlack + retry.UpTo(expirySlack)
		}
		poll.Reset(next)
	}
}

// waitEnded returns the error of a wait whose ctx has ended: busy as well, if it was queued behind a known holder.
func (l *Locker) waitEnded(ctx context.Context, key string) error {
	if known := l.keys.known(key); known != nil {
		return &BusyError{Key: key, Holder: *known, err: ended(ctx)}
	}
	return newEndedError(ctx, key)
}

var errWaitOver = errors.New("the limit of the wait is over")

// untilLimit returns what is left of a wait.
func untilLimit(limit time.Time) time.Duration {
	if limit.IsZero() {
		return noLimit
	}
	return time.Until(limit)
}

const noLimit = time.Duration(1<<63 - 1)

// keyTable knows which keys this Locker holds, so that these are busy without a round trip, and has a wait queue for each
// key, of which only the first caller asks the store.
//
// It grants nothing: the store's answer to a token is what makes a holder. Callers that do not wait ask the primary side by
// side: if one of them had to wait for another's answer, a request that hangs would delay both.
type keyTable struct {
	mu   sync.Mutex // guards what follows; never held while a handler is called
	keys map[string]*keyEntry
}

// keyEntry exists while its key is held or waited for.
type keyEntry struct {
	holder       *Lease        // the lease that holds the key, or that did and whose minimum hold is not over
	waiters      []*waiter     // in order; the first one asks
	last         Holder        // the last known holder, here or by a store's answer
	since        time.Time     // when last was learned; zero if no holder is known
	subscription *subscription // from the store's notifier, for the first waiter; nil until it is needed
}

// waiter is one caller in a wait queue.
type waiter struct {
	ctx     context.Context
	request request
	asks    bool // the stores, or is about to: then no claim is handed over to it

	// granted is closed when handed is set: the lease that was handed over to the waiter, which is in the queue no longer.
	granted chan struct{}
	handed  *Lease

	// wakeUp wakes the first waiter because the key may be free (nil), or any of them because no store is available. It
	// holds one message, and a second one adds nothing: a waiter looks again before it sleeps.
	wakeUp chan error
}

func newKeyTable() *keyTable { return &keyTable{keys: make(map[string]*keyEntry)} }

// at returns the key's entry, making one if need be. It is called with mu held.
func (g *keyTable) at(key string) *keyEntry {
	k := g.keys[key]
	if k == nil {
		k = &keyEntry{}
		g.keys[key] = k
	}
	return k
}

// tidy removes an entry that is no longer needed. It is called with mu held.
func (g *keyTable) tidy(key string, k *keyEntry) {
	if len(k.waiters) == 0 && k.subscription != nil {
		k.subscription.stop()
		k.subscription = nil
	}
	if k.holder == nil && len(k.waiters) == 0 {
		delete(g.keys, key)
	}
}

// busy reports whether this Locker holds key, or keeps it for a minimum hold. If it is about to be released in the background,
// released says when that has been done.
func (g *keyTable) busy(key string) (busy bool, released <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	if k == nil || k.holder == nil {
		return false, nil
	}
	if k.holder.isReleasing() {
		released = k.holder.released
	}
	return true, released
}

// hold makes ls the holder. It may take the place of one whose lease was lost in the stores but not yet ended here.
func (g *keyTable) hold(ls *Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.at(ls.claim.Key)
	k.holder = ls
	k.last, k.since = Holder{ID: ls.claim.Holder}, time.Now()
}

// free ends the hold of ls, if it is the holder; not before keep, if that is in the future.
func (g *keyTable) free(ls *Lease, keep time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[ls.claim.Key]
	if k == nil || k.holder != ls {
		return
	}
	if left := time.Until(keep); !keep.IsZero() && left > 0 {
		time.AfterFunc(left, func() { g.free(ls, time.Time{}) })
		return
	}
	k.holder = nil
	if pause := ls.handedOver(); pause > 0 && len(k.waiters) > 0 {
		time.AfterFunc(pause, func() { g.wake(ls.claim.Key) })
		k.since = time.Time{} // a caller whose wait ends in the pause asks
	} else {
		k.wake()
	}
	g.tidy(ls.claim.Key, k)
}

// wake wakes the first waiter of a key, unless it has a holder again.
func (g *keyTable) wake(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.keys[key]; k != nil {
		k.wake()
	}
}

// wake is called with mu held.
func (k *keyEntry) wake() {
	if k.holder == nil && len(k.waiters) > 0 {
		k.waiters[0].wake(nil)
	}
}

func (w *waiter) wake(err error) {
	select {
	case w.wakeUp <- err:
	default:
	}
}

// join adds a caller to the wait queue of its key.
func (g *keyTable) join(ctx context.Context, r request) *waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := &waiter{ctx: ctx, request: r, wakeUp: make(chan error, 1), granted: make(chan struct{})}
	k := g.at(r.key)
	k.waiters = append(k.waiters, w)
	if len(k.waiters) == 1 { // the one who is first already looks by itself, and not once more for each that joins
		k.wake()
	}
	return w
}

// asks reports whether a waiter may ask the stores: not if this Locker holds the key, perhaps by a lease that the waiter has been
// handed.
func (g *keyTable) asks(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.asks = w.handed == nil && g.keys[w.request.key].holder == nil
	return w.asks
}

// rests is the opposite: the waiter waits to be woken.
func (g *keyTable) rests(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.asks = false
}

// leave removes a caller from the wait queue, and returns the lease that it was handed, if it was. If its wait ended in an outage, the others' waits end with it: otherwise each
// of them would find out by itself, one timeout after the other. Not if that says nothing about the attempts of the others: the
// caller's short expiry or near deadline left no time, or another waiter met the outage, and those behind the caller may
// have come after its end.
func (g *keyTable) leave(w *waiter, err error, forAll bool) *Lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.handed != nil {
		return w.handed
	}
	key := w.request.key
	k := g.keys[key]
	i := slices.Index(k.waiters, w)
	k.waiters = slices.Delete(k.waiters, i, i+1)
	if errors.Is(err, ErrUnavailable) && forAll {
		for _, other := range k.waiters {
			select {
			case <-other.wakeUp: //nolint:errcheck // nil, or an older outage
			default:
			}
			other.wake(err)
		}
	} else if i == 0 {
		k.wake()
	}
	g.tidy(key, k)
	return nil
}

// learn notes the holder that a store named to a waiter, for those behind it.
func (g *keyTable) learn(key string, h Holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	k.last, k.since = h, time.Now()
}

// known returns the last known holder of a key that has waiters, nil if there is none. It may have released since: a waiter
// was queued behind it, and is behind the waiter that is about to acquire the lock now.
func (g *keyTable) known(key string) *Holder {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	if k == nil || k.since.IsZero() {
		return nil
	}
	h := k.last
	h.Left = max(h.Left-time.Since(k.since), 0)
	return &h
}

// subscription is one notifier's wake-ups for one key, for as long as a caller of this Locker waits for it.
type subscription struct {
	wakeUps <-chan struct{} // nil if the notifier cannot listen; closed when it no longer can
	stop    func()
	asked   time.Time // when it was asked to
	ended   bool      // wakeUps has been seen closed
}

// subscribed returns the subscription that the key's waiters share. It gets a new one from open if there is none, or if the
// last one had no wake-ups and is old enough to try again. It returns nil if open does. Only the first waiter calls it.
func (g *keyTable) subscribed(key string, open func() *subscription) *subscription {
	g.mu.Lock()
	n := g.keys[key].subscription
	wakes := n != nil && n.wakeUps != nil && !n.ended
	g.mu.Unlock()
	if wakes || n != nil && time.Since(n.asked) < relistenPause {
		return n
	}
	again := open() // asks the store
	if again == nil {
		return n
	}
	if n != nil {
		n.stop()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.keys[key].subscription = again
	return again
}

// subscriptionEnded notes that the key's notifier has given up.
func (g *keyTable) subscriptionEnded(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.keys[key]; k != nil && k.subscription != nil {
		k.subscription.ended = true
	}
}
