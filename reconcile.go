package loki

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki/internal/keyqueue"
)

// reconciler brings the records of one store to what they should be: it writes the mirror, rolls back, releases, keeps
// minimum holds and completion records. All of these are one thing, a record with a wanted end (see record.next), and one
// rule decides when a request is sent and when it is repeated.
//
// Acquisition, renewal and the first attempt of a release that its caller waits for are sent on the goroutine that needs
// the answer. In the secondary they take the key's turn in the same queue, so that order holds across both.
type reconciler struct {
	l     *Locker
	s     *store
	queue *keyqueue.Queue

	pending atomic.Int64 // leases that are over and wait for another attempt

	mu       sync.Mutex           // before the mutex of a lease; never held while a store is asked
	leases   map[string][]*Lease  // by key, the oldest first
	refusals map[string]refusalAt // the latest refusal of a key that callers wait for
}

type refusalAt struct {
	sent time.Time
	by   Holder
}

// The classes of urgency.
const (
	classEnd   = iota // the first request for a lease that is over; callers of the key come after it
	classFirst        // mirror writes of a lease that has no record yet
	classAgain        // other mirror writes, and repetitions
	classes
)

// queueKey returns where a lease has its turn: with the others of its key as long as the order counts. Repetitions for a
// lease that is over have a turn of their own: they concern its token alone, and one that hangs must not delay the next
// lease on the key.
func queueKey(key, token string, repeated bool) string {
	if repeated {
		return key + "\x00" + token
	}
	return key
}

const (
	// backgroundSlots is how many requests of one reconciler are under way at once, of those that the store answers within
	// slotPatience. maxBackground is how many there are with those that hang.
	backgroundSlots = 16
	slotPatience    = 50 * time.Millisecond
	maxBackground   = 256

	// maxQueuedFirst is how many first mirror writes may wait for a slot before acquisitions write the mirror themselves.
	maxQueuedFirst = 4 * backgroundSlots

	// maxPending is how many leases that are over may wait for another attempt at their release or rollback. What comes on
	// top is left to expire, and an event says so.
	maxPending = 4096

	// maxAbandonedWait is how long Close waits for an abandoned call, because the release that follows it would be lost: see
	// [Locker.Close].
	maxAbandonedWait = 30 * time.Second
)

var (
	errTooManyPending = errors.New("loki: too many releases are being retried: this claim is left to expire")
	errFoundNothing   = errors.New("loki: the store did not hold the claim any more: an earlier request had released it, the next lock had replaced it, it had expired, or it was lost")
	errNotAskedInTime = errors.New("not asked in time: an earlier request for the same key has not been answered")
	errNotAnswered    = errors.New("no answer in time")
	errMirrorLate     = errors.New("too many mirror writes are waiting for the secondary")
)

func newReconciler(l *Locker, s *store) *reconciler {
	w := &reconciler{l: l, s: s, leases: make(map[string][]*Lease), refusals: make(map[string]refusalAt)}
	w.queue = keyqueue.New(keyqueue.Config{
		Classes: classes, Slots: backgroundSlots, Patience: slotPatience, Limit: maxBackground, Due: w.due, Work: w.work,
	})
	return w
}

// changed says that the record of ls may not be as it should be.
func (w *reconciler) changed(ls *Lease) {
	w.mu.Lock()
	known := false
	for _, other := range w.leases[ls.claim.Key] {
		known = known || other == ls
	}
	if !known {
		w.leases[ls.claim.Key] = append(w.leases[ls.claim.Key], ls)
	}
	w.mu.Unlock()
	w.queue.Changed(queueKey(ls.claim.Key, ls.claim.Token, ls.wasAttempted(w.s)))
}

// forget says that the record of ls needs nothing any more.
func (w *reconciler) forget(ls *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := ls.claim.Key
	w.leases[key] = slices.DeleteFunc(w.leases[key], func(other *Lease) bool { return other == ls })
	if len(w.leases[key]) == 0 {
		delete(w.leases, key)
	}
}

// due returns the class of the most urgent request that a key of the queue needs, or when to look again. It forgets leases
// whose record is settled, but only those that have their turn here: of another one a request may be under way, and what it
// needs after that is not known yet.
func (w *reconciler) due(queued string) (class int, at time.Time) {
	key, token, repeated := strings.Cut(queued, "\x00")
	w.mu.Lock()
	defer w.mu.Unlock()
	class = keyqueue.Nothing
	leases := w.leases[key]
	keep := leases[:0]
	for _, ls := range leases {
		if repeated != ls.wasAttempted(w.s) || repeated && ls.claim.Token != token {
			keep = append(keep, ls)
			continue
		}
		c, when, settled := ls.needs(w.s)
		if settled {
			continue
		}
		keep = append(keep, ls)
		if c != keyqueue.Nothing && (class == keyqueue.Nothing || c < class) {
			class = c
		}
		if !when.IsZero() && (at.IsZero() || when.Before(at)) {
			at = when
		}
	}
	clear(leases[len(keep):])
	w.leases[key] = keep
	if len(keep) == 0 {
		delete(w.leases, key)
	}
	return class, at
}

// work sends the most urgent request that a key of the queue needs; of several, that of the oldest lease.
func (w *reconciler) work(queued string) {
	key, token, repeated := strings.Cut(queued, "\x00")
	w.mu.Lock()
	var found *Lease
	class := classes
	for _, ls := range w.leases[key] {
		if repeated != ls.wasAttempted(w.s) || repeated && ls.claim.Token != token {
			continue
		}
		if c, _, _ := ls.needs(w.s); c != keyqueue.Nothing && c < class {
			found, class = ls, c
		}
	}
	w.mu.Unlock()
	if found == nil {
		return
	}
	w.perform(context.WithoutCancel(found.base), found)
	if !repeated && found.wasAttempted(w.s) {
		w.queue.Changed(queueKey(key, found.claim.Token, true))
	}
}

// predecessor returns the token of a record on the key of ls that the store may replace, the nth of them, and whether there is
// another one: first the released one, if there is one, then those of earlier leases of this process whose release has not
// been confirmed, the newest first; those that the store had confirmed before the others, since one record at most stands there.
// After the last comes the first again. A minimum hold is not replaced.
func (w *reconciler) predecessor(ls *Lease, released string, n int) (token string, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var gone []*Lease
	if released != "" {
		gone = append(gone, nil)
	}
	leases := w.leases[ls.claim.Key]
	if i := slices.Index(leases, ls); i >= 0 { // else it is the newest
		leases = leases[:i]
	}
	for _, stood := range []bool{true, false} {
		for _, other := range slices.Backward(leases) {
			if remains, confirmed := other.mayRemain(w.s); remains && confirmed == stood {
				gone = append(gone, other)
			}
		}
	}
	if len(gone) == 0 {
		return "", false
	}
	n %= len(gone)
	more = n+1 < len(gone)
	if gone[n] == nil {
		return released, more
	}
	return gone[n].claim.Token, more
}

// replaces notes that a request is about to leave which may replace a record of this process.
func (w *reconciler) replaces(c Claim) {
	if c.Supersedes == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ls := range w.leases[c.Key] {
		if ls.claim.Token == c.Supersedes {
			ls.mayBeReplaced(w.s)
		}
	}
}

// hasOther reports whether this process has sent the store another claim of the key of ls, and has not released it.
func (w *reconciler) hasOther(ls *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.leases[ls.claim.Key], func(other *Lease) bool { return other != ls && other.sent(w.s) })
}

// releaseNow makes the first attempt to release ls, or to set its minimum hold, on the caller's goroutine. It returns what
// that found.
func (w *reconciler) releaseNow(ls *Lease) finding {
	ctx := context.WithoutCancel(ls.base)
	if w.take(ctx, ls.claim.Key, time.Now().Add(w.s.timeout)) {
		w.perform(ctx, ls) // unless a worker has been quicker
		w.done(ls.claim.Key)
	}
	if err := ls.firstReleaseErr(w.s); err != nil {
		ls.notReleased(w.s, err)
	}
	if ls.isSettled(w.s) {
		w.forget(ls)
	} else {
		w.changed(ls)
	}
	return ls.foundIn(w.s)
}

// perform sends what the record of ls needs, if it still needs something, and takes the answer. It is called in the key's
// turn.
func (w *reconciler) perform(ctx context.Context, ls *Lease) {
	q, ok := ls.nextRequest(w.s)
	if !ok {
		return
	}
	if q.late && w.queue.Queued(classFirst)+w.queue.Queued(classAgain) > 0 { // else it has waited for its key's turn alone
		w.reportLate(ls)
	}
	var a answer
	sent, left := time.Now(), q.limit
	switch {
	case q.step == stepDrop:
		a = w.s.release(ctx, q.claim, q.limit)
	case q.extend:
		a = w.s.extend(ctx, q.claim, q.end, q.limit, nil)
		a.reports = w.s.extends()
	default:
		a = w.l.lockReplacing(ls, w.s, false, func(n int) (c Claim, more bool) {
			c = q.claim
			c.Supersedes, more = ls.supersedes(w.s, n)
			return c, more
		}, func(c Claim) answer {
			a := w.s.lock(ctx, c, q.end, left)
			left = q.limit - time.Since(sent)
			if a.HeldBy.ID != w.l.holder {
				w.l.noteHolder(w.s, ls.claim.Key, a) // before it is asked again: a call of the key may begin now
			}
			return a
		})
	}
	event, owed, tooMany := ls.tookAnswer(w, q, a)
	if q.extend {
		w.follow(ls, a)
	}
	if q.step == stepKeep {
		w.l.noteHolder(w.s, ls.claim.Key, a)
	}
	if q.over && event == KindRefused {
		w.s.health.refused(ctx, OpRelease, ls.claim.Key, a)
	} else if q.over && event != "" {
		e := Event{Kind: event, Store: w.s.name, Op: OpRelease, Key: ls.claim.Key, Took: time.Since(a.sent), Err: a.err}
		if event == KindRecordFailed {
			e.Op = OpLock
		}
		if event == KindReleased && a.reports && !a.Held {
			e.Err = errFoundNothing
		}
		w.l.events.emit(ctx, e)
	}
	if tooMany {
		w.l.events.emit(ctx, Event{Kind: KindReleaseFailed, Store: w.s.name, Op: OpRelease, Key: ls.claim.Key, Err: errTooManyPending})
	}
	if !q.over {
		w.l.mode.(async).mirrored(ls, a) // the only mode whose live leases want anything of a reconciler
	}
	w.l.background.add(-owed)
}

// follow waits for abandoned calls. What they change, when they return, is changed back. What they answer counts as an answer
// about the key: a store that takes longer than its callers may wait would not be heard at all otherwise.
func (w *reconciler) follow(ls *Lease, a answer) {
	if len(a.left) > 0 {
		w.followAbandoned(ls, a)
	}
}

func (w *reconciler) followAbandoned(ls *Lease, a answer) {
	w.l.background.add(1)
	counted := sync.OnceFunc(func() { w.l.background.add(-1) })
	timer := time.AfterFunc(maxAbandonedWait, counted)
	returned := make(chan *attempt)
	for _, t := range a.left {
		go func() {
			<-t.returned
			returned <- t
		}()
	}
	go func() {
		failed := false
		for range a.left {
			t := <-returned
			failed = failed || t.err != nil && !isNotSent(t.err)
			if t.err == nil {
				w.l.heardLate(ls, w.s, answer{Grant: t.grant, sent: a.sent, expiry: a.expiry, couldRecord: a.couldRecord})
			}
		}
		timer.Stop()
		ls.returned(w.s, len(a.left), a.couldRecord, failed, a.expiry, a.ends)
		w.changed(ls)
		counted()
	}()
}

// reportLate reports, once for a time of overload, that mirror writes have to wait.
func (w *reconciler) reportLate(ls *Lease) {
	e := Event{Kind: KindMirrorLate, Level: levelDebug, Store: w.s.name, Op: OpLock, Key: ls.claim.Key, Err: errMirrorLate}
	if w.s.health.news(string(e.Kind), "", "") {
		e.Level = levelWarn
	}
	w.l.events.emit(ls.base, e)
}

// behind reports whether many first mirror writes wait, or one has for longer than the grace. Acquisitions write the mirror
// themselves then: the capacity grows with the callers, and the bound on an overlap holds at any rate.
func (w *reconciler) behind() bool {
	return w.queue.Queued(classFirst) > maxQueuedFirst || w.queue.Behind(classFirst) > mirrorGrace
}

// take waits for a key's turn; the caller calls done if it reports true.
func (w *reconciler) take(ctx context.Context, key string, deadline time.Time) bool {
	return w.queue.Take(ctx, key, deadline)
}

func (w *reconciler) done(key string) {
	w.tidyRefusals(key) // first: a caller that waits may still share one
	w.queue.Done(key)
}

// tidyRefusals forgets the refusal of a key that no caller waits for.
func (w *reconciler) tidyRefusals(key string) {
	if w.queue.Waiting(key) == 0 {
		w.mu.Lock()
		delete(w.refusals, key)
		w.mu.Unlock()
	}
}

// refused notes the holder that the store has named, for the callers that wait for the key's turn.
func (w *reconciler) refused(key string, a answer) {
	if w.queue.Waiting(key) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusals[key] = refusalAt{a.sent, a.HeldBy}
}

// refusedSince returns the holder that the store has named in answer to a request that was sent since then.
func (w *reconciler) refusedSince(key string, then time.Time) (Holder, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.refusals[key]
	return r.by, ok && !r.sent.Before(then)
}

// finding is what a store that had confirmed a lease found at its release.
type finding int

const (
	foundUnknown finding = iota // it did not report that, or not for certain
	foundClaim                  // the claim, to the end
	foundNothing                // no such claim, although the lease was valid
)

// pendingRequest is what a record needs, as it is sent.
type pendingRequest struct {
	step   step
	over   bool
	extend bool
	late   bool
	first  bool // it is the first for a lease that is over
	fresh  bool // the store has never confirmed the record
	claim  Claim
	end    time.Time // the wanted end
	limit  time.Duration

	disturbed int // how often the record had been disturbed when it was sent
}
