package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
	"github.com/lokilock/loki/lokitest"
)

var errFails = errors.New("fn fails")

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
	token   string        // the claim that a store granted last
	minted  []string      // the claims that were sent since the current call began
	count   uint64        // of all claims
	held    time.Duration // until when the process may hold although no call is under way
	named   named
	suspect time.Duration // until when a record may last that the secondary has named, whosever it is
}

// named is what the secondary said of another holder.
type named struct {
	at, until time.Duration // when the answer came, and when that record's last known expiry has passed
	text      string
}

// claim is what a process has been told of one of its claims.
type claim struct {
	key      string
	number   uint64        // of the key's claims, from 1, or for other keys than the first from anywhere
	asked    time.Duration // when it was sent first
	fences   []int64       // that it was given
	trusted  time.Duration // until when it holds in the store that protects it
	kept     time.Duration // until when the primary holds it
	hold     time.Duration // until when it is to be held at least
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
	call       Call
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
			name, _, _ := strings.Cut(c.Key, probeSuffix) // what follows is random
			_, _ = h.Write([]byte(name))
			p.claims[c.Token].number += uint64(h.Sum32())
		}
	}
	known := p.claim(c.Token)
	switch {
	case op == lokitest.OpRelease:
		known.releases[at]++
	case at == primary:
		known.asking++
	case isOccurrence(c.Key):
	case p.world.schedule.Mode == Async && !p.world.bursts() && !c.Repeated && known.asking == 0 && known.kept > now && c.Expiry > max(known.kept, known.hold)-now+time.Millisecond:
		p.world.breach("%s asked for a record of %v when %v were left of its lease", p.name, c.Expiry, known.kept-now)
	}
}

// hasTrouble notes that a question to a store was not answered.
func (p *process) hasTrouble() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.troubles++
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
	if a.grant.Fence != 0 {
		known.fences = append(known.fences, a.grant.Fence)
	}
	if !heard {
		if err == nil && at == secondary && op == lokitest.OpLock { // it may be heard as what it says of the key
			p.hearsLate(p.lock(c.Key), sent, a)
		}
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
	if at == secondary {
		p.hearsOfHolder(l, op, c, sent, a)
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
	if c.MinHold > 0 {
		opts = append(opts, loki.WithMinHold(c.MinHold))
	}
	if c.Occurrence > 0 {
		opts = append(opts, loki.WithOccurrence(fmt.Sprint(c.Occurrence), keep))
	}
	var out loki.Outcome
	opts = append(opts, loki.WithOutcome(&out))
	p.mu.Lock()
	l := p.lock(name)
	l.minted = nil
	refusals, unanswered, troubles := p.refusals, p.unanswered, p.troubles
	p.mu.Unlock()
	var r *run
	var cause error
	start := p.world.now()
	err := p.locker.ExecuteWithinLock(ctx, p.world.schedule.Expiry, func(ctx context.Context) error {
		r = p.begin(ctx, name, c)
		p.world.tell("%s runs %s", p.name, name)
		retry.Sleep(ctx, c.Works)
		p.endRun(name) // however long fn is deaf: the lock ends with its context, and so does the promise
		cause = context.Cause(ctx)
		if ctx.Err() != nil && c.Deaf > 0 {
			time.Sleep(c.Deaf)
		}
		if c.Fails {
			return errFails
		}
		p.world.succeeds(name, c.Occurrence)
		return nil
	}, opts...)
	p.world.tell("%s ends %s: %v", p.name, name, err)

	p.mu.Lock()
	defer p.mu.Unlock()
	ran := r != nil
	now := p.world.now()
	recorded := true // the occurrence, or there was none
	for _, wire := range p.wires {
		recorded = recorded && wire.fineDuring(start-latest, now) || c.Occurrence == 0 || c.Fails
	}
	for _, token := range l.minted {
		known, hold := p.claim(token), time.Duration(0)
		switch {
		case !ran || token != r.token || errors.Is(err, loki.ErrLockLost):
		case c.MinHold > 0:
			hold = r.start + c.MinHold
		case !recorded: // until it is, for an expiry at most
			hold = now + p.world.schedule.Expiry
		}
		known.hold, l.held = hold, max(l.held, hold)
		p.world.over(token, p, hold)
	}
	if ran {
		r.store, r.returned, r.err = string(out.Store), now, err
		r.crashed = r.crashed || p.crashed // before the call returned, and perhaps before the occurrence was recorded
	}
	p.world.returned(&attempt{process: p, key: name, start: start, end: now, err: err, ended: ctx.Err() != nil})
	if p.crashed {
		return
	}
	busy, unavailable, lost := errors.Is(err, loki.ErrBusy), errors.Is(err, loki.ErrUnavailable), errors.Is(err, loki.ErrLockLost)
	done := errors.Is(err, loki.ErrDone)
	switch {
	case ran != out.Ran:
		p.world.breach("%s: fn ran is %v, and the outcome says %v", p.name, ran, out.Ran)
	case ran && (busy || unavailable):
		p.world.breach("%s: fn ran, and the error is %v", p.name, err)
	case !ran && !busy && !unavailable && ctx.Err() == nil:
		p.world.breach("%s: fn did not run, and the error is %v", p.name, err)
	case errors.Is(cause, loki.ErrLockLost) && !lost:
		p.world.breach("%s lost its lock, and the error is %v", p.name, err)
	case ran && c.Fails != errors.Is(err, errFails):
		p.world.breach("%s: that fn failed is %v, and the error is %v", p.name, c.Fails, err)
	case ran && errors.Is(err, loki.ErrNotHeld) && !errors.Is(cause, loki.ErrLockLost) && !p.world.missed(r.token) && p.claim(r.token).refused == [2]bool{}:
		p.world.breach("%s was told that its lock was not held when it was released, and every store held it: %v", p.name, err)
	case ran && c.MinHold == 0 && p.claim(r.token).missing == [2]bool{true, p.world.schedule.Mode != Alone} && !lost:
		p.world.breach("%s was not told that no store held its lock when it was released: %v", p.name, err)
	case busy && !done && p.refusals == refusals && l.suspect < start && l.held < start && !errors.Is(err, context.DeadlineExceeded):
		p.world.breach("%s was told busy, and no store had said so: %v", p.name, err)
	case unavailable && p.troubles == troubles && p.unanswered == unanswered && unanswered == 0:
		p.world.breach("%s was told unavailable, and every store had answered: %v", p.name, err)
	case done && !p.world.hasSucceeded(name, c.Occurrence):
		p.world.breach("%s was told that occurrence %d was done, and nobody had done it", p.name, c.Occurrence)
	case lost:
		p.requireFault(r, cause)
	}
	if ran && !lost && c.MinHold > 0 {
		p.world.holds.Go(func() { p.world.watchHold(r, p.claimOf(r.token)) })
	} else if (ran || done && ctx.Err() == nil) && c.MinHold == 0 && recorded && p.wires[primary].fineDuring(start-latest, now) {
		for _, token := range l.minted {
			if p.world.stores[primary].holds(p.ctx, name) == token {
				p.world.breach("%s has returned and left its claim in the primary, which it has reached since %v: %v", p.name, start-latest, err)
			}
		}
	}
}

// claimOf is a copy of what is known of a claim now.
func (p *process) claimOf(token string) claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *p.claim(token)
}

// begin notes that fn starts.
func (p *process) begin(ctx context.Context, name string, c Call) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lock(name)
	r := &run{process: p, key: name, token: l.token, call: c, start: p.world.now(), end: -1, returned: -1}
	if ls, ok := loki.LeaseFromContext(ctx); ok {
		r.fence = ls.Fence()
		for _, token := range l.minted { // which of them, where a late answer to one that was given up came last
			if r.fence != 0 && slices.Contains(p.claim(token).fences, r.fence) {
				r.token = token
			}
		}
	}
	r.asked = p.claim(r.token).asked
	if c.MinHold > 0 {
		p.claim(r.token).hold = r.start + c.MinHold
	}
	l.current = r
	p.world.ran(r)
	p.requireNobodyNamed(l, r)
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
	if r.call.Occurrence > 0 && !r.call.Fails { // for an expiry from when each store has been asked to record that
		known.hold = r.end + p.world.schedule.Expiry + p.world.settles()
	}
	if trusted := known.trusted; r.end > trusted && !r.crashed {
		p.world.breach("%s ran on until %v under a lock that was confirmed until %v", p.name, r.end, trusted)
	}
}
