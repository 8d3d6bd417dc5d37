package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
	"github.com/lokilock/loki/lokitest"
)

// wire is one process's way to one store: a handler that has the weather's faults, and that notes what the process was
// told. When the process has crashed nothing of it passes any more, but for what is on its way.
type wire struct {
	process *process
	at      int // the store
	faults  *lokitest.Faults

	mu      sync.Mutex // guards what follows
	weather string
	salt    uint64
	since   time.Duration                // when that set in
	locking map[string][]context.Context // of claims whose lock is under way: the contexts of their attempts
	over    map[context.Context]bool     // of calls that have been answered: their attempts share a context
	batched map[string]context.Context   // of claims that a batch has asked about: the context of that attempt
	fine    []span                       // when the link was fine, without the span that lasts
	idle    int                          // connections that are warm
}

// plainWire is a wire whose handler has the two methods that every handler has.
type plainWire struct{ wire *wire }

func (w plainWire) Lock(ctx context.Context, c loki.Claim) (bool, error) { return w.wire.Lock(ctx, c) }
func (w plainWire) Release(ctx context.Context, c loki.Claim) error      { return w.wire.Release(ctx, c) }

// handler is what the Locker is given.
func (w *wire) handler() loki.LockHandler {
	if w.traits().Plain {
		return plainWire{w}
	}
	return w
}

func (w *wire) traits() Traits { return w.process.world.schedule.Stores[w.at] }

func newWire(p *process, at int) *wire {
	w := &wire{process: p, at: at, faults: lokitest.NewFaults(p.world.stores[at]), locking: make(map[string][]context.Context), over: make(map[context.Context]bool), batched: make(map[string]context.Context)}
	w.set(fine, uint64(2*p.id+at))
	return w
}

// set has the weather set in. The fault of a call is drawn from the salt, from what is asked of which claim, and from how
// often that was asked: so that it does not depend on which of two calls at one instant comes first.
func (w *wire) set(name string, salt uint64) {
	w.mu.Lock()
	if now := w.process.world.now(); w.weather != name {
		if w.weather == fine {
			w.fine = append(w.fine, span{w.since, now})
		}
		w.since = now
	}
	w.weather, w.salt, w.idle = name, salt, 0
	w.mu.Unlock()
	type question struct {
		op     lokitest.Op
		claim  uint64
		second bool
	}
	distance := w.traits().Distance
	var mu sync.Mutex // guards asked
	asked := make(map[question]uint64)
	fault := weather(name)
	w.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
		q := question{op, w.process.number(c), c.Repeated}
		mu.Lock()
		defer mu.Unlock()
		asked[q]++
		seed := salt + uint64(op[0])<<56 + q.claim<<40
		if q.second {
			seed++
		}
		r := rand.New(rand.NewPCG(seed, asked[q]))
		f := fault(r, q.second)
		if name == crawling {
			f = crawls(r, timeouts[w.at])
		}
		if distance > 0 {
			f.Before.For += upTo(r, distance)
			f.After.For += upTo(r, distance)
		}
		return f
	})
}

// fineSince is when the link became fine, false if it is not.
func (w *wire) fineSince() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since, w.weather == fine
}

// fineDuring reports whether the link was fine all the time.
func (w *wire) fineDuring(from, to time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.weather == fine && w.since <= max(from, 0) ||
		slices.ContainsFunc(w.fine, func(s span) bool { return s.from <= max(from, 0) && to <= s.to })
}

// Lock is Grant told in one word.
func (w *wire) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := w.Grant(ctx, c)
	return g.Held, err
}

// Grant is the store's, as far as its traits allow.
func (w *wire) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	a, err := w.call(ctx, lokitest.OpLock, c, func() (answer, error) {
		g, err := w.faults.Grant(ctx, c)
		if w.traits().Forgetful {
			g.Released = ""
		}
		if w.traits().Plain {
			g = loki.Grant{Held: g.Held}
		}
		return answer{held: g.Held, grant: g}, err
	})
	return a.grant, err
}

// Bounds reports whether calls return when their context ends, also where the network says nothing of it.
func (w *wire) Bounds() bool { return w.traits().Bounded }

// Inspect is the store's. The referee does not judge it: it changes nothing.
func (w *wire) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if w.process.hasCrashed() {
		return loki.Holder{}, false, errDown
	}
	h, held, err := w.faults.Inspect(ctx, key)
	if err != nil {
		w.process.hasTrouble()
	}
	return h, held, err
}

// firstAttempt is the key of the context of a call's first attempt in that of the second one, if a batch has made the first.
type firstAttempt struct{}

// batchSlack is by how much the times may differ that the leases of a batch are waited for. An answer that comes when some of
// them are not waited for any more is lost: whether a process has heard it must be the same for all.
const batchSlack = 20 * time.Millisecond

// Extend is the store's.
func (w *wire) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	w.mu.Lock()
	if first := w.batched[c.Token]; !c.Repeated {
		delete(w.batched, c.Token)
	} else if first != nil {
		ctx = context.WithValue(ctx, firstAttempt{}, first)
	}
	w.mu.Unlock()
	a, err := w.call(ctx, lokitest.OpExtend, c, func() (answer, error) {
		held, err := w.faults.Extend(ctx, c)
		return answer{held: held}, err
	})
	return a.held, err
}

// ExtendAll is the store's for each claim, whatever becomes of the others. The process learns it when the last of them is answered.
func (w *wire) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	if !w.traits().Batches {
		return nil, errors.ErrUnsupported
	}
	answers := make([]loki.Extended, len(claims))
	var answered, learnt sync.WaitGroup
	for i, c := range claims {
		answered.Add(1)
		done := sync.OnceFunc(answered.Done)
		learnt.Go(func() {
			defer done()                           // also if the request comes to nothing
			ctx, cancel := context.WithCancel(ctx) // of its own: the others are other calls
			defer cancel()
			w.mu.Lock()
			w.batched[c.Token] = ctx
			w.mu.Unlock()
			a, err := w.call(ctx, lokitest.OpExtend, c, func() (answer, error) {
				held, err := w.faults.Extend(ctx, c)
				done()
				answered.Wait()
				if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < batchSlack { // some leases are waited for less long
					<-ctx.Done()
					return answer{}, ctx.Err()
				}
				return answer{held: held}, err
			})
			answers[i] = loki.Extended{Held: a.held, Err: err}
		})
	}
	learnt.Wait()
	return answers, nil
}

// Release is ReleaseHeld for those who need not know.
func (w *wire) Release(ctx context.Context, c loki.Claim) error {
	_, err := w.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld is the store's.
func (w *wire) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	a, err := w.call(ctx, lokitest.OpRelease, c, func() (answer, error) {
		held, err := w.faults.ReleaseHeld(ctx, c)
		return answer{held: held || w.traits().Plain}, err // one that cannot tell says nothing against it
	})
	return a.held, err
}

// answer is what a store said.
type answer struct {
	held  bool
	grant loki.Grant // of a Grant
}

// call makes a call. If that is bounded it returns when ctx ends, whatever becomes of the request.
func (w *wire) call(ctx context.Context, op lokitest.Op, c loki.Claim, ask func() (answer, error)) (answer, error) {
	if !c.Bounded {
		return w.request(ctx, op, c, ask)
	}
	type result struct {
		answer
		err error
	}
	returned := make(chan result, 1)
	go func() {
		a, err := w.request(ctx, op, c, ask)
		returned <- result{a, err}
	}()
	select {
	case r := <-returned:
		return r.answer, r.err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

func (w *wire) request(ctx context.Context, op lokitest.Op, c loki.Claim, ask func() (answer, error)) (answer, error) {
	if w.process.hasCrashed() {
		return answer{}, errDown
	}
	sent := w.process.world.now()
	w.process.sends(w.at, op, c)
	number := w.process.number(c)
	w.tell("%s %s of %s (claim %d) for %v", op, storeNames[w.at], c.Key, number, c.Expiry)
	w.requireOrder(ctx, op, c)
	if w.haunts(ctx, op, c) {
		w.returned(ctx, op, c, errDown)
		return answer{}, errDown
	}
	a, err := answer{}, w.connect(ctx)
	if err == nil {
		a, err = ask()
		w.disconnect(ctx)
	}
	w.tell("%s %s of %s (claim %d) sent at %v: %v, %v", op, storeNames[w.at], c.Key, number, sent, a.held, err)
	first := w.returned(ctx, op, c, err)
	if ctx.Err() != nil { // a client sees the end of its context a moment later than the Locker does, and not sometimes earlier
		time.Sleep(latency / 10)
	}
	w.process.isTold(w.at, op, c, sent, a, err, first && !givenUp(ctx))
	return a, err
}

func (w *wire) tell(format string, args ...any) {
	if w.process.world.telling {
		w.process.world.tell("    %s: %s", w.process.name, fmt.Sprintf(format, args...))
	}
}

// connect finds a connection for a request: a warm one, or a new one, whose first request is slow.
func (w *wire) connect(ctx context.Context) error {
	w.mu.Lock()
	if w.weather != cold || w.idle > 0 {
		w.idle = max(w.idle-1, 0)
		w.mu.Unlock()
		return nil
	}
	w.mu.Unlock()
	if !retry.Sleep(ctx, firstRequest(w.at)) {
		return ctx.Err()
	}
	return nil
}

// disconnect keeps a connection warm, unless its request was cancelled.
func (w *wire) disconnect(ctx context.Context) {
	if ctx.Err() == nil {
		w.mu.Lock()
		w.idle++
		w.mu.Unlock()
	}
}

// givenUp reports whether the Locker has given up a call: its deadline has passed, or its caller has gone. The context lives on
// for a while after the deadline.
func givenUp(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// probeSuffix is what the key of a circuit breaker's probe has behind that of the lock.
const probeSuffix = "@@probe-"

// requireOrder sees that the requests of a claim reach the secondary in order: a release that is sent while a lock is under
// way, and not given up, could overtake it and leave it behind.
func (w *wire) requireOrder(ctx context.Context, op lokitest.Op, c loki.Claim) {
	w.mu.Lock()
	under := slices.ContainsFunc(w.locking[c.Token], func(call context.Context) bool { return !givenUp(call) })
	if op == lokitest.OpLock {
		w.locking[c.Token] = append(w.locking[c.Token], ctx)
	}
	w.mu.Unlock()
	isProbe := strings.Contains(c.Key, probeSuffix) // whose attempts acquire and release within one call, with a token each
	if w.at == secondary && op == lokitest.OpRelease && under && !isProbe {
		w.process.world.breach("%s sent the secondary a release while the lock of the same claim was under way", w.process.name)
	}
}

// returned notes the end of an attempt. One that is answered is the end of its call, and the other one is given up. It
// reports false if the call was over: then nobody looks at this answer.
func (w *wire) returned(ctx context.Context, op lokitest.Op, c loki.Claim, err error) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := ctx
	if first, ok := ctx.Value(firstAttempt{}).(context.Context); ok {
		call = first
	}
	if w.over[call] {
		return false
	}
	if err == nil {
		w.over[call] = true
		w.locking[c.Token] = slices.DeleteFunc(w.locking[c.Token], func(call context.Context) bool { return call == ctx })
	} else if i := slices.IndexFunc(w.locking[c.Token], func(call context.Context) bool { return call == ctx }); op == lokitest.OpLock && i >= 0 {
		w.locking[c.Token] = slices.Delete(w.locking[c.Token], i, i+1)
	}
	return true
}

// haunts reports whether a request becomes a ghost: it fails, and reaches the store when nobody knows of it any more.
func (w *wire) haunts(ctx context.Context, op lokitest.Op, c loki.Claim) bool {
	w.mu.Lock()
	weather, salt := w.weather, w.salt
	w.mu.Unlock()
	r := rand.New(rand.NewPCG(salt, uint64(w.process.world.now())))
	if weather != haunted || r.IntN(2) == 0 {
		return false
	}
	time.Sleep(upTo(r, latency))
	time.AfterFunc(upTo(r, latest), func() {
		ctx, store := context.WithoutCancel(ctx), w.process.world.stores[w.at]
		switch op {
		case lokitest.OpLock:
			_, _ = store.Lock(ctx, c)
		case lokitest.OpExtend:
			_, _ = store.Extend(ctx, c)
		case lokitest.OpRelease:
			_ = store.Release(ctx, c)
		}
	})
	return true
}
