package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
	"github.com/lokilock/loki/lokitest"
)

// process is one life of an instance: from its start to its crash or to the end of the story.
type process struct {
	world  *world
	id     int    // of the instance
	name   string // of this life; its claims bear it
	wires  []*wire
	locker *loki.Locker
	ctx    context.Context // of its calls
	kill   context.CancelFunc

	mu         sync.Mutex // guards what follows
	crashed    bool
	locks      map[string]*lock
	claims     map[string]*claim // every claim ever sent
	refusals   int               // answers that another token holds
	unanswered int               // requests that were sent and not answered, or not yet
	troubles   int               // requests that failed, were given up, or took longer than they do on a link that is fine
}

// lock is what a process knows of one key. It has one call at a time there.
type lock struct {
	current *run
	patient bool     // the caller of the latest call gives it all the time that it takes
	token   string   // the claim that a store granted last
	minted  []string // the claims that were sent since the current call began
	count   uint64   // of all claims
}

// claim is what a process has been told of one of its claims.
type claim struct {
	key      string
	number   uint64        // of the key's claims, from 1, or for other keys than the first from anywhere
	asked    time.Duration // when it was sent first
	fences   []int64       // that it was given
	trusted  time.Duration // until when it holds in the store that protects it
	kept     time.Duration // until when the primary holds it
	answered bool          // the secondary has said yes or no to it
	refused  [2]bool       // a store has said no to it
	asking   int           // requests to the primary that have not been answered
	releases [2]int        // requests to release it, in each store
	missing  [2]bool       // the first of them has been answered, in time: it was not held
}

// run is one run of a closure.
type run struct {
	process    *process
	key        string
	token      string
	asked      time.Duration // when its claim was sent first
	start, end time.Duration // the end is that of fn or of its context, whichever is earlier
	fence      int64
	store      string // who granted it
	answered   bool   // the secondary had answered before the end
	crashed    bool
	returned   time.Duration // when the call did; negative while it has not
	err        error
}

// attempt is one call that has returned.
type attempt struct {
	process    *process
	key        string
	start, end time.Duration
	err        error
	ended      bool // its context had
}

func (w *world) newProcess(ctx context.Context, id, life int) (*process, error) {
	p := &process{world: w, id: id, name: fmt.Sprintf("instance %d", id), locks: make(map[string]*lock), claims: make(map[string]*claim)}
	if life > 1 {
		p.name += fmt.Sprintf(", life %d", life)
	}
	p.ctx, p.kill = context.WithCancel(ctx)
	c := loki.Config{ServiceKey: key, Holder: p.name}
	p.wires = []*wire{newWire(p, primary)}
	c.Primary = p.wires[primary].handler()
	if w.schedule.Mode != Alone {
		p.wires = append(p.wires, newWire(p, secondary))
		c.Secondary = p.wires[secondary].handler()
	}
	if w.schedule.Mode == Sync {
		c.Mirror = loki.MirrorSync
	}
	if w.telling {
		c.Observer = func(_ context.Context, e loki.Event) {
			w.tell("  %s: %s %s %v", p.name, e.Kind, e.Op, e.Err)
		}
	}
	var err error
	p.locker, err = loki.New(c)
	return p, err
}

func (p *process) hasCrashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

// crash ends the process: whatever its Locker still does reaches nobody.
func (p *process) crash() {
	p.mu.Lock()
	p.crashed = true
	var running []string
	for key, l := range p.locks {
		if l.current != nil {
			l.current.crashed = true
			running = append(running, key)
		}
	}
	p.mu.Unlock()
	for _, key := range running {
		p.endRun(key)
	}
	p.kill()
}

// lock is called with mu held.
func (p *process) lock(key string) *lock {
	if p.locks[key] == nil {
		p.locks[key] = &lock{}
	}
	return p.locks[key]
}

// claim is called with mu held. A claim that was never sent, as the breaker's, is the zero claim.
func (p *process) claim(token string) *claim {
	if c := p.claims[token]; c != nil {
		return c
	}
	return &claim{}
}

// sends notes a request before it leaves. A mirror write asks for no more than what is left of the lease, or the record
// would outlive its key; only a record that the lease relies on, because the primary has failed it, is asked for in full.
func (p *process) sends(at int, op lokitest.Op, c loki.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered++
	now := p.world.now()
	if op == lokitest.OpLock && p.claims[c.Token] == nil {
		l := p.lock(c.Key)
		l.minted = append(l.minted, c.Token)
		l.count++
		p.claims[c.Token] = &claim{key: c.Key, number: l.count, asked: now}
		if c.Key != key {
			h := fnv.New32a()
			_, _ = h.Write([]byte(c.Key))
			p.claims[c.Token].number += uint64(h.Sum32())
		}
	}
	known := p.claim(c.Token)
	switch {
	case op == lokitest.OpRelease:
		known.releases[at]++
	case at == primary:
		known.asking++
	case p.world.schedule.Mode == Async && known.asking == 0 && known.kept > now && c.Expiry > known.kept-now+time.Millisecond:
		p.world.breach("%s asked for a record of %v when %v were left of its lease", p.name, c.Expiry, known.kept-now)
	}
}

func (p *process) isPatient(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lock(key).patient
}

// number is that of a claim.
func (p *process) number(c loki.Claim) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claim(c.Token).number
}

// isTold notes an answer. One for which nobody waits any more tells the process nothing.
func (p *process) isTold(at int, op lokitest.Op, c loki.Claim, sent time.Duration, a answer, err error, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.claim(c.Token)
	heard := err == nil && waits
	now := p.world.now()
	if at == primary && op != lokitest.OpRelease {
		switch {
		case !heard: // and it counts as unanswered for ever: the record may be what the lease relies on from now on
		case a.held:
			known.asking, known.kept = 0, sent+c.Expiry
		default:
			known.asking++
		}
	}
	if !heard || now-sent > p.world.roundTrip(at) {
		p.troubles++
	}
	if a.fence != 0 {
		known.fences = append(known.fences, a.fence)
	}
	if !heard {
		return
	}
	p.unanswered--
	if op == lokitest.OpRelease {
		known.missing[at] = !a.held && known.releases[at] == 1 && now+p.world.schedule.Expiry/3 < known.trusted
		return
	}
	l := p.lock(c.Key)
	if a.held {
		if op == lokitest.OpLock && slices.Contains(l.minted, c.Token) { // and not the late one of an earlier call
			l.token = c.Token
		}
		if at == secondary || p.world.schedule.Mode != Sync { // where the record is what protects
			known.trusted = max(known.trusted, sent+c.Expiry)
		}
	} else {
		p.refusals++
		known.refused[at] = true
	}
	if at == secondary && op == lokitest.OpLock {
		known.answered = true
	}
}

// perform is one call.
func (p *process) perform(name string, c Call) {
	ctx := p.ctx
	if c.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Patience)
		defer cancel()
	}
	opts := []loki.Option{loki.WithWait(c.Wait)}
	if name != key {
		opts = append(opts, loki.WithResource(name[len(key)+1:]))
	}
	if c.NoRenewal {
		opts = append(opts, loki.WithoutRenewal())
	}
	var out loki.Outcome
	opts = append(opts, loki.WithOutcome(&out))
	p.mu.Lock()
	l := p.lock(name)
	l.minted, l.patient = nil, c.Patience == 0
	refusals, unanswered, troubles := p.refusals, p.unanswered, p.troubles
	p.mu.Unlock()
	var r *run
	var cause error
	start := p.world.now()
	err := p.locker.ExecuteWithinLock(ctx, p.world.schedule.Expiry, func(ctx context.Context) error {
		r = p.begin(ctx, name)
		p.world.tell("%s runs %s", p.name, name)
		retry.Sleep(ctx, c.Works)
		p.endRun(name) // however long fn is deaf: the lock ends with its context, and so does the promise
		cause = context.Cause(ctx)
		if ctx.Err() != nil && c.Deaf > 0 {
			time.Sleep(c.Deaf)
		}
		return nil
	}, opts...)
	p.world.tell("%s ends %s: %v", p.name, name, err)

	p.mu.Lock()
	defer p.mu.Unlock()
	ran := r != nil
	now := p.world.now()
	for _, token := range l.minted {
		p.world.over(token, p)
	}
	if ran {
		r.store, r.returned, r.err = string(out.Store), now, err
	}
	p.world.returned(&attempt{process: p, key: name, start: start, end: now, err: err, ended: ctx.Err() != nil})
	if p.crashed {
		return
	}
	busy, unavailable, lost := errors.Is(err, loki.ErrBusy), errors.Is(err, loki.ErrUnavailable), errors.Is(err, loki.ErrLockLost)
	switch {
	case ran != out.Ran:
		p.world.breach("%s: fn ran is %v, and the outcome says %v", p.name, ran, out.Ran)
	case ran && (busy || unavailable):
		p.world.breach("%s: fn ran, and the error is %v", p.name, err)
	case !ran && !busy && !unavailable && ctx.Err() == nil:
		p.world.breach("%s: fn did not run, and the error is %v", p.name, err)
	case errors.Is(cause, loki.ErrLockLost) && !lost:
		p.world.breach("%s lost its lock, and the error is %v", p.name, err)
	case ran && errors.Is(err, loki.ErrNotHeld) && !errors.Is(cause, loki.ErrLockLost) && !p.world.missed(r.token) && p.claim(r.token).refused == [2]bool{}:
		p.world.breach("%s was told that its lock was not held when it was released, and every store held it: %v", p.name, err)
	case ran && p.claim(r.token).missing == [2]bool{true, p.world.schedule.Mode != Alone} && !lost:
		p.world.breach("%s was not told that no store held its lock when it was released: %v", p.name, err)
	case busy && p.refusals == refusals && !errors.Is(err, context.DeadlineExceeded):
		p.world.breach("%s was told busy, and no store had said so: %v", p.name, err)
	case unavailable && p.troubles == troubles && p.unanswered == unanswered && unanswered == 0:
		p.world.breach("%s was told unavailable, and every store had answered: %v", p.name, err)
	}
}

// begin notes that fn starts.
func (p *process) begin(ctx context.Context, name string) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lock(name)
	r := &run{process: p, key: name, token: l.token, start: p.world.now(), end: -1, returned: -1}
	if ls, ok := loki.LeaseFromContext(ctx); ok {
		r.fence = ls.Fence()
		for _, token := range l.minted { // which of them, where a late answer to one that was given up came last
			if r.fence != 0 && slices.Contains(p.claim(token).fences, r.fence) {
				r.token = token
			}
		}
	}
	r.asked = p.claim(r.token).asked
	l.current = r
	p.world.ran(r)
	return r
}

// endRun notes the end of a run, once, and whether its lease had been confirmed until then.
func (p *process) endRun(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lock(name)
	r := l.current
	if r == nil {
		return
	}
	l.current = nil
	known := p.claim(r.token)
	r.end, r.answered = p.world.now(), known.answered
	if trusted := known.trusted; r.end > trusted && !r.crashed {
		p.world.breach("%s ran on until %v under a lock that was confirmed until %v", p.name, r.end, trusted)
	}
}
