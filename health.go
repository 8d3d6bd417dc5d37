package loki

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/lokilock/loki/internal/retry"
)

const (
	// breakerKeys is how many different keys have to fail, with no answer to any key in between, before the store is
	// taken to be down for all of them: a cluster may have lost one shard only.
	breakerKeys = 3

	// maxFailingKeys bounds the memory of keys that fail while others are answered.
	maxFailingKeys = 1024

	// steadyTime damps the reports of a store that comes and goes: one that fails again within this time of its
	// return is reported as back only when it has not failed a call for as long.
	steadyTime = time.Minute

	everyKey = "" // no lock has it
)

// health is what the calls of one store came to. Every call is noted here, and what follows from it is decided here: when
// an outage is reported, when its end is, and when the circuit breaker is open.
//
// A failure counts for its key, since a cluster may have lost one shard. It is over when a call about that key is answered
// that was sent after it and that demands as much of the store: one that is out of memory answers releases and refuses
// acquisitions. Probes see to it that there is such a call, also for a key that is never locked again.
//
// One lost call is no outage. It becomes one, and is reported, when a call fails that was sent after that failure had been
// seen: about the same key, or an acquisition while none has been granted or refused for any key. Calls that fail side by
// side count as one. The outage is over when no key is left that failed.
type health struct {
	store    *store
	other    *health // of the other store, nil if there is none
	required bool    // without this store nothing runs, whatever the other one answers

	down atomic.Bool // an outage has been reported, and not its end

	mu        sync.Mutex // guards what follows; never held while a store is asked
	failing   map[string]*failure
	streak    map[string]struct{} // keys that failed since the last answer
	ungranted time.Time           // when an acquisition failed that no answer to a later one has followed; zero if none did
	proof     [demands]time.Time  // by demand: when the latest call was sent that was answered and demanded as much
	last      string              // the latest key that the breaker sent elsewhere: what is probed for every key
	err       error               // the handler's latest failure
	asked     time.Time           // when an acquisition failed last, since one was answered
	since     time.Time           // when the first of the calls that failed was sent
	calls     int                 // acquisitions and renewals that failed since then, or that the breaker kept from the store
	back      time.Time           // when the last failing key was answered, zero before
	steady    *time.Timer
	returned  time.Time           // when the latest outage ended
	problems  map[string]*problem // that have been reported, by their cause
	ended     bool
}

func newHealth(s *store) *health {
	return &health{store: s, failing: make(map[string]*failure), streak: make(map[string]struct{}), problems: make(map[string]*problem)}
}

// failure is a key whose latest call failed.
type failure struct {
	op            Op        // of the call that failed first
	err           error     // what that came to
	first, latest time.Time // when its failures were noted
	sent          time.Time // when the latest of the calls that failed was sent

	demand int // of the least demanding operation that failed

	pause time.Duration
	timer *time.Timer
}

// demand ranks operations: a store that carries out one of them can carry out those below it.
func demand(op Op) int {
	switch op {
	case OpLock, opProbe:
		return 2
	case OpExtend:
		return 1
	}
	return 0
}

const demands = 3

// note takes what one call came to. A call that its caller ended, or left too little time, says nothing about the store.
// A notifier that cannot listen is no outage: waiting polls then.
func (h *health) note(ctx context.Context, op Op, key string, a answer) {
	switch {
	case op == OpNotify || a.calledOff:
	case a.err == nil:
		h.answered(ctx, op, key, a.sent)
		h.works(op, key)
	case !IsUnavailable(a.err):
		h.answered(ctx, op, key, a.sent)
		if op != OpRelease && op != opProbe { // a release reports its own refusal, if there is something to release
			h.refused(ctx, op, key, a)
		}
	case !a.cutShort:
		h.failed(ctx, op, key, a)
	}
}

func (h *health) failed(ctx context.Context, op Op, key string, a answer) {
	ctx = context.WithoutCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	now := time.Now()
	if len(h.failing) == 0 && !h.down.Load() {
		h.since, h.calls = a.sent, 0
	}
	if op == OpLock || op == OpExtend { // not the release that follows a failure, nor a probe
		h.calls++
	}
	if op == OpLock {
		h.asked = now
	}
	err := handlersOwn(a.err)
	h.err, h.back = err, time.Time{}
	if h.steady != nil {
		h.steady.Stop()
	}
	confirmed := false
	if op == OpLock {
		if h.ungranted.IsZero() {
			h.ungranted = now
		} else {
			confirmed = !a.sent.Before(h.ungranted)
		}
	}
	switch f := h.failing[key]; {
	case f != nil:
		confirmed = confirmed || !a.sent.Before(f.first)
		f.latest, f.sent, f.demand = now, later(f.sent, a.sent), min(f.demand, demand(op))
	case h.failing[everyKey] == nil:
		if len(h.failing) < maxFailingKeys {
			h.fails(ctx, key, op, err, a.sent)
		}
		if h.streak[key] = struct{}{}; len(h.streak) == breakerKeys {
			h.last = key
			h.fails(ctx, everyKey, op, err, a.sent)
		}
	}
	if confirmed {
		if f := h.failing[key]; f != nil { // the first failure says more than that of a probe, or of a rollback
			op, err = f.op, f.err
		}
		h.reportDown(ctx, op, key, err)
	}
}

// fails is called with mu held.
func (h *health) fails(ctx context.Context, key string, op Op, err error, sent time.Time) {
	now := time.Now()
	f := &failure{op: op, err: err, first: now, latest: now, sent: sent, demand: demand(op), pause: breakerMinPause}
	h.failing[key] = f
	h.probeLater(ctx, key, f)
}

// answered is given when the call was sent: an answer that was on its way when the store failed says nothing about now.
func (h *health) answered(ctx context.Context, op Op, key string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if op == OpLock && !sent.Before(h.ungranted) {
		h.ungranted, h.asked = time.Time{}, time.Time{}
	}
	for d := range demand(op) + 1 {
		h.proof[d] = later(h.proof[d], sent)
	}
	clear(h.streak)
	if len(h.failing) == 0 || h.ended {
		return
	}
	now, back := time.Now(), time.Time{}
	for _, key := range []string{everyKey, key} {
		if f := h.failing[key]; f != nil && !sent.Before(f.latest) && (key == everyKey || demand(op) >= f.demand) {
			f.timer.Stop()
			delete(h.failing, key)
			back = now
		}
	}
	if len(h.failing) == 0 {
		h.ungranted = time.Time{}
		switch {
		case h.down.Load():
			h.recovered(context.WithoutCancel(ctx), back)
		case !h.returned.IsZero(): // a failure that was no outage, of a store that comes and goes
			h.returned = now
		}
	}
}

// reportDown is called with mu held.
func (h *health) reportDown(ctx context.Context, op Op, key string, err error) {
	if h.down.Swap(true) {
		return
	}
	level := levelWarn // the other store decides meanwhile
	if h.required || h.other == nil || h.other.down.Load() {
		level = levelError
	}
	h.store.events.emit(ctx, Event{Kind: KindDown, Level: level, Store: h.store.name, Op: op, Key: key, Err: h.store.wrap(op, Claim{Key: key}, err)})
}

// recovered is called with mu held, when the last failing key of a reported outage has been answered.
func (h *health) recovered(ctx context.Context, back time.Time) {
	h.back = back
	if h.returned.IsZero() || h.since.Sub(h.returned) >= steadyTime {
		h.reportUp(ctx)
		return
	}
	h.steady = time.AfterFunc(steadyTime, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.back.Equal(back) && !h.ended {
			h.reportUp(ctx)
		}
	})
}

// reportUp is called with mu held.
func (h *health) reportUp(ctx context.Context) {
	h.down.Store(false)
	h.store.events.emit(ctx, Event{Kind: KindUp, Store: h.store.name, Took: h.back.Sub(h.since), Calls: h.calls})
	h.returned, h.back = h.back, time.Time{}
}

// end stops the probes and reports what is known at the Locker's end: a store that is back but not for long enough, and
// one whose failure nothing has contradicted. A process that runs one job and exits has no time for a second failure.
func (h *health) end(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	if h.steady != nil {
		h.steady.Stop()
	}
	for key, f := range h.failing {
		f.timer.Stop()
		if key != everyKey && !f.sent.Before(h.proof[f.demand]) {
			h.reportDown(ctx, f.op, key, f.err)
		}
	}
	if !h.back.IsZero() {
		h.reportUp(ctx)
	}
}

// A primary that is down must not make every call slow: after a failure it is asked less. These are the pauses between
// two probes of a store that failed, jittered by an eighth; each is twice as long as the one before. Until a probe is
// answered, acquisitions go to the secondary at once. Since another instance may see the primary up in that time,
// breakerMaxPause is part of the bound on the overlap of two closures under [MirrorAsync].
const (
	breakerMinPause = 100 * time.Millisecond
	breakerMaxPause = 3 * time.Second
)

// refusal is the circuit breaker: it returns why an acquisition of key should bypass the store, or nil. It is open for a
// key from its failure until a call about it, a probe for example, is answered; and for every key when several failed
// in a row. Renewals and releases try the store anyway.
//
// Without another store it is always closed: a caller that cannot go elsewhere is better off with an attempt.
func (h *health) refusal(key string) error {
	if h.other == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing[everyKey] == nil && h.failing[key] == nil {
		return nil
	}
	h.last = key
	return Unavailable(fmt.Errorf("not asked, since a moment ago it failed: %w", h.err))
}

// bypassed counts an acquisition that the breaker has kept from the store.
func (h *health) bypassed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
}

// probeLater sets the next probe of a key that failed. It is called with mu held.
func (h *health) probeLater(ctx context.Context, key string, f *failure) {
	f.timer = time.AfterFunc(retry.Around(f.pause), func() { h.probe(ctx, key, f) })
	f.pause = min(2*f.pause, breakerMaxPause)
}

// probe asks the store in the background, so that no caller has to wait to find out that it is back. What it comes to is
// noted like any other call.
func (h *health) probe(ctx context.Context, key string, f *failure) {
	h.mu.Lock()
	about := key
	if key == everyKey {
		about = h.last
	}
	// Without another store every acquisition asks this one: as long as callers do, a probe would only compete with them.
	needed := h.other != nil || time.Since(h.asked) >= breakerMaxPause
	h.mu.Unlock()
	if needed {
		h.store.probe(ctx, about)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing[key] == f && !h.ended {
		h.probeLater(ctx, key, f)
	}
}

// maxProblems bounds the memory of what has been reported. When it is full everything is news again.
const maxProblems = 64

// problem is something that a store keeps doing and that has been reported: a permanent error, for example.
type problem struct {
	op     Op
	key    string    // of the call that met it first
	met    time.Time // when it was met last
	passed bool      // the operation has worked since, for another key
}

// news reports whether cause should be reported: when it is met for the first time, or again after it was over. It is
// over when the same operation has worked for the same key, or when it has worked for another one and the cause has not
// been met for steadyTime: an error may concern some keys only, and those that met it may never be locked again. A problem of
// no operation (op is empty) is over when it has not been met for so long.
func (h *health) news(cause string, op Op, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if p := h.problems[cause]; p != nil && (!p.passed || now.Sub(p.met) < steadyTime) {
		p.met = now
		return false
	}
	if len(h.problems) >= maxProblems {
		clear(h.problems)
	}
	h.problems[cause] = &problem{op: op, key: key, met: now, passed: op == ""}
	return true
}

// works notes that op was answered without an error.
func (h *health) works(op Op, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for cause, p := range h.problems {
		if p.op == op && p.key == key {
			delete(h.problems, cause)
		} else if p.op == op {
			p.passed = true
		}
	}
}

// refused reports a permanent error. Every call that meets it is an event, and the first one is an error for people to see.
func (h *health) refused(ctx context.Context, op Op, key string, a answer) {
	if errors.Is(a.err, errPanicked) {
		return // reported already
	}
	e := Event{Kind: KindRefused, Level: levelDebug, Store: h.store.name, Op: op, Key: key, Took: time.Since(a.sent), Err: a.err}
	if h.news(causeOf(handlersOwn(a.err), key), op, key) {
		e.Level = levelError
	}
	if op == OpRelease {
		e.Err = h.store.wrap(op, Claim{Key: key}, fmt.Errorf("locks that cannot be released stay held until they expire: %w", handlersOwn(a.err)))
	}
	h.store.events.emit(ctx, e)
}

// causeOf is what the texts of one error have in common, whichever key and operation met it, and whenever. The time, a port,
// the id of a request, the name of a prepared statement and the hash of a script are part of many: so words with digits and
// words that are hexadecimal numbers do not count, nor do those of the key, in whatever way it is quoted.
func causeOf(err error, key string) string {
	wordsOf := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	passing := append(wordsOf(key), string(OpLock), "grant", string(OpExtend), string(OpRelease))
	return strings.Join(slices.DeleteFunc(wordsOf(err.Error()), func(word string) bool {
		return strings.ContainsFunc(word, unicode.IsDigit) || strings.Trim(word, "abcdefABCDEF") == "" || slices.Contains(passing, word)
	}), " ")
}
