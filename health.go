package loki

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
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
// A failure counts for its key, since a cluster may have lost one shard: it is over when a call about that key is
// answered that was sent after it. Probes see to it that there is such a call, also for a key that is never locked again. A
// probe demands little: the failure of an acquisition is over as well when the probe was answered, the key has not failed for
// steadyTime, and another one is granted or refused.
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
	unproven  int                 // of these: those whose probe was answered
	row       map[string]struct{} // keys that failed since the last answer
	ungranted time.Time           // when an acquisition failed that no answer to a later one has followed; zero if none did
	proof     time.Time           // when the latest of the calls that were answered was sent
	last      string              // the latest key that the breaker sent elsewhere: what is probed for every key
	err       error               // the handler's latest failure
	since     time.Time           // when the first of the calls that failed was sent
	calls     int                 // acquisitions and renewals that failed since then, or that the breaker kept from the store
	back      time.Time           // when the last failing key was answered, zero before
	steady    *time.Timer
	returned  time.Time           // when the latest outage ended
	problems  map[string]*problem // that have been reported, by their cause
	ended     bool
}

func newHealth(s *store) *health {
	return &health{store: s, failing: make(map[string]*failure), row: make(map[string]struct{}), problems: make(map[string]*problem)}
}

// failure is a key whose latest call failed.
type failure struct {
	op            string    // of the call that failed first
	err           error     // what that came to
	first, latest time.Time // when its failures were noted
	sent          time.Time // when the latest of the calls that failed was sent

	// demand is that of the least demanding operation that failed. A server that is out of memory, or a disk that is
	// full, answers releases and refuses acquisitions: the answer to a release proves nothing then.
	demand int

	probed bool // a less demanding call was answered since
	pause  time.Duration
	timer  *time.Timer
}

// open reports whether the key has not been answered at all since it failed.
func (f *failure) open() bool { return f != nil && !f.probed }

// demand ranks operations: a store that carries out one of them can carry out those below it.
func demand(op string) int {
	switch op {
	case opLock:
		return 2
	case opExtend:
		return 1
	}
	return 0
}

// note takes what one call came to. A call that its caller ended, or left too little time, says nothing about the store.
// A notifier that cannot listen is no outage: waiting polls then.
func (h *health) note(ctx context.Context, op, key string, a answer) {
	switch {
	case op == opNotify || a.calledOff:
	case a.err == nil:
		h.answered(ctx, op, key, a.sent)
		h.works(op, key)
	case !IsUnavailable(a.err):
		h.answered(ctx, op, key, a.sent)
		if demand(op) > 0 { // a release reports its own refusal, if there is something to release; nobody asked for a probe
			h.refused(ctx, op, key, a)
		}
	case !a.cutShort:
		h.failed(ctx, op, key, a)
	}
}

func (h *health) failed(ctx context.Context, op, key string, a answer) {
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
	if demand(op) > 0 { // what somebody waited for, unlike a probe or the release that follows a failure
		h.calls++
	}
	err := handlersOwn(a.err)
	h.err, h.back = err, time.Time{}
	if h.steady != nil {
		h.steady.Stop()
	}
	confirmed := false
	if op == opLock {
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
		if f.probed {
			f.probed, f.pause = false, BreakerMinPause
			h.unproven--
			h.probeLater(ctx, key, f)
		}
	case h.failing[everyKey] == nil:
		if len(h.failing) < maxFailingKeys {
			h.fails(ctx, key, op, err, a.sent)
		}
		if h.row[key] = struct{}{}; len(h.row) == breakerKeys {
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
func (h *health) fails(ctx context.Context, key, op string, err error, sent time.Time) {
	now := time.Now()
	f := &failure{op: op, err: err, first: now, latest: now, sent: sent, demand: demand(op), pause: BreakerMinPause}
	h.failing[key] = f
	h.probeLater(ctx, key, f)
}

// answered is given when the call was sent: an answer that was on its way when the store failed says nothing about now.
func (h *health) answered(ctx context.Context, op, key string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if op == opLock && !sent.Before(h.ungranted) {
		h.ungranted = time.Time{}
	}
	h.proof = later(h.proof, sent)
	clear(h.row)
	if len(h.failing) == 0 || h.ended {
		return
	}
	now, back := time.Now(), time.Time{}
	if f := h.failing[everyKey]; f != nil && !sent.Before(f.latest) {
		h.recovers(everyKey, f)
		back = now
	}
	if f := h.failing[key]; f != nil && !sent.Before(f.latest) {
		if demand(op) >= f.demand {
			h.recovers(key, f)
			back = now
		} else if !f.probed {
			f.probed = true
			f.timer.Stop()
			h.unproven++
		}
	}
	if h.unproven > 0 { // the store can be reached for these keys, and can do for another what it failed to do
		for key, f := range h.failing {
			if f.probed && demand(op) >= f.demand && now.Sub(f.latest) >= steadyTime { // one that is in use fails again before
				h.recovers(key, f)
				back = later(back, f.latest)
			}
		}
	}
	if len(h.failing) == 0 {
		h.ungranted = time.Time{}
		if h.down.Load() {
			h.recovered(context.WithoutCancel(ctx), back)
		}
	}
}

// recovers is called with mu held.
func (h *health) recovers(key string, f *failure) {
	f.timer.Stop()
	if f.probed {
		h.unproven--
	}
	delete(h.failing, key)
}

// reportDown is called with mu held.
func (h *health) reportDown(ctx context.Context, op, key string, err error) {
	if h.down.Swap(true) {
		return
	}
	level := levelWarn // the other store decides meanwhile
	if h.required || h.other == nil || h.other.down.Load() {
		level = levelError
	}
	h.store.events.emit(ctx, Event{Kind: KindDown, Level: level, Handler: h.store.name, Op: op, Key: key, Err: h.store.wrap(op, Claim{Key: key}, err)})
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
	h.store.events.emit(ctx, Event{Kind: KindUp, Handler: h.store.name, Took: h.back.Sub(h.since), Calls: h.calls})
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
		if f.open() && key != everyKey && !f.sent.Before(h.proof) {
			h.reportDown(ctx, f.op, key, f.err)
		}
	}
	if !h.back.IsZero() {
		h.reportUp(ctx)
	}
}
