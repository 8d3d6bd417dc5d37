package loki

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// gate knows which keys this Locker holds, so that these are busy without a round trip, and keeps the Locker's waiters
// for one key in line, so that only the first of them asks the store.
//
// It grants nothing: the store's answer to a token is what makes a holder. Callers that do not wait ask the store side
// by side; to make one of them wait for another's answer would only add that one's bad luck to its own.
type gate struct {
	mu   sync.Mutex // guards what follows; never held while a handler is called
	keys map[string]*gateKey
}

// gateKey exists while its key is held or waited for.
type gateKey struct {
	holder  *Lease    // the lease that holds, or that held and whose minimum hold is not over
	waiters []*waiter // in order; the first one asks
	last    *Holder   // the last known holder, here or by a store's answer; nil if none is known
	since   time.Time // when last was learned
	news    *news     // from the store's notifier, for the first in line; nil until it is needed
}

// waiter is one caller in line.
type waiter struct {
	// turn tells the first in line that the key may be free, or anyone that no store answers. It holds one message,
	// and a second one adds nothing: a waiter looks again before it sleeps.
	turn chan error
}

func newGate() *gate { return &gate{keys: make(map[string]*gateKey)} }

// at returns the key's entry, making one if need be. It is called with mu held.
func (g *gate) at(key string) *gateKey {
	k := g.keys[key]
	if k == nil {
		k = &gateKey{}
		g.keys[key] = k
	}
	return k
}

// tidy forgets a key of which there is nothing to know. It is called with mu held.
func (g *gate) tidy(key string, k *gateKey) {
	if len(k.waiters) == 0 && k.news != nil {
		k.news.stop()
		k.news = nil
	}
	if k.holder == nil && len(k.waiters) == 0 {
		delete(g.keys, key)
	}
}

// busy reports whether this Locker holds key, or keeps it for a minimum hold.
func (g *gate) busy(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	return k != nil && k.holder != nil
}

// hold makes ls the holder. It may take the place of one whose lease was lost in the stores but not yet ended here.
func (g *gate) hold(ls *Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.at(ls.claim.Key)
	k.holder = ls
	k.last, k.since = &Holder{ID: ls.claim.Holder}, time.Now()
}

// free ends the hold of ls, if it is the holder; not before keep, if that is in the future.
func (g *gate) free(ls *Lease, keep time.Time) {
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
	k.wake()
	g.tidy(ls.claim.Key, k)
}

// wake is called with mu held.
func (k *gateKey) wake() {
	if k.holder == nil && len(k.waiters) > 0 {
		k.waiters[0].tell(nil)
	}
}

func (w *waiter) tell(err error) {
	select {
	case w.turn <- err:
	default:
	}
}

// join puts a caller in line.
func (g *gate) join(key string) *waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := &waiter{turn: make(chan error, 1)}
	k := g.at(key)
	k.waiters = append(k.waiters, w)
	if len(k.waiters) == 1 { // the one who is first already looks by himself, and not once more for everybody who joins
		k.wake()
	}
	return w
}

// leave takes a caller out of the line. If its wait ended in an outage, the others' waits end with it: else each would find
// out by itself, one timeout after the other. Not if the caller was not patient: what a short expiry or a near deadline had
// no time for says nothing about the others' attempts.
func (g *gate) leave(key string, w *waiter, err error, patient bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	i := slices.Index(k.waiters, w)
	k.waiters = slices.Delete(k.waiters, i, i+1)
	if errors.Is(err, ErrUnavailable) && patient {
		for _, other := range k.waiters {
			select {
			case <-other.turn: //nolint:errcheck // nil, or an outage too: the newer news counts
			default:
			}
			other.tell(err)
		}
	} else if i == 0 {
		k.wake()
	}
	g.tidy(key, k)
}

// learn notes the holder that a store named to a waiter, for those behind it.
func (g *gate) learn(key string, h Holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	k.last, k.since = &h, time.Now()
}

// known returns the last known holder of a key that has waiters, nil if there is none. A holder that has released since is
// the right answer too: whoever waits was queued behind it, and is now behind the waiter whose turn it is.
func (g *gate) known(key string) *Holder {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	if k.last == nil {
		return nil
	}
	h := *k.last
	h.Left = max(h.Left-time.Since(k.since), 0)
	return &h
}

// news is what one notifier tells of one key, for as long as anybody here waits for it.
type news struct {
	frees <-chan struct{} // nil if the notifier cannot listen; closed when it no longer can
	stop  func()
	asked time.Time // when it was asked to
	ended bool      // frees has been seen closed
}

// news returns what the key's waiters share, and gets it from open if there is none, or none that tells and that is
// old enough to try again. It returns nil if open does. Only the first in line calls it.
func (g *gate) news(key string, open func() *news) *news {
	g.mu.Lock()
	n := g.keys[key].news
	tells := n != nil && n.frees != nil && !n.ended
	g.mu.Unlock()
	if tells || n != nil && time.Since(n.asked) < relistenPause {
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
	g.keys[key].news = again
	return again
}

// newsEnded notes that the key's notifier has given up.
func (g *gate) newsEnded(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.keys[key].news; n != nil {
		n.ended = true
	}
}
