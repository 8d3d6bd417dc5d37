package simulation

import (
	"context"
	"errors"
	"fmt"
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
	current    *run
	token      string            // the claim that a store granted last
	minted     []string          // the claims that were sent since the current call began
	claims     map[string]*claim // every claim ever sent
	refusals   int               // answers that another token holds
	unanswered int               // requests that were sent and not answered, or not yet
}

// claim is what a process has been told of one of its claims.
type claim struct {
	number   int           // from 1
	asked    time.Duration // when it was sent first
	trusted  time.Duration // until when it holds in the store that protects it
	kept     time.Duration // until when the primary holds it
	answered bool          // the secondary has said yes or no to it
	asking   int           // requests to the primary that have not been answered
	releases [2]int        // requests to release it, in each store
	missing  [2]bool       // the first of them has been answered, in time: it was not held
}

// run is one run of a closure.
type run struct {
	process    *process
	token      string
	asked      time.Duration // when its claim was sent first
	start, end time.Duration // the end is that of fn or of its context, whichever is earlier
	fence      int64
	answered   bool // the secondary had answered before the end
	crashed    bool
	err        error
}

func (w *world) newProcess(ctx context.Context, id, life int) (*process, error) {
	p := &process{world: w, id: id, name: fmt.Sprintf("instance %d", id), claims: make(map[string]*claim)}
	if life > 1 {
		p.name += fmt.Sprintf(", life %d", life)
	}
	p.ctx, p.kill = context.WithCancel(ctx)
	c := loki.Config{ServiceKey: key, Holder: p.name}
	p.wires = []*wire{newWire(p, primary)}
	c.Primary = p.wires[primary]
	if w.schedule.Mode != Alone {
		p.wires = append(p.wires, newWire(p, secondary))
		c.Secondary = p.wires[secondary]
	}
	if w.schedule.Mode == Sync {
		c.Mirror = loki.MirrorSync
	}
	if w.telling {
		c.Observer = func(_ context.Context, e loki.Event) {
			w.tell("  %s: %s %s %s %v", p.name, e.Kind, e.Handler, e.Op, e.Err)
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
	if r := p.current; r != nil {
		r.crashed = true
	}
	p.mu.Unlock()
	p.endRun()
	p.kill()
}

// claim is called with mu held. A claim that was never sent, as the breaker's, is the zero claim.
func (p *process) claim(token string) *claim {
	if c := p.claims[token]; c != nil {
		return c
	}
	return &claim{}
}

// sends notes a request before it leaves. A mirror write asks for no more than what is left of the lease, or the row would
// outlive its key; only a row that the lease lives by, because the primary has failed it, is asked for in full.
func (p *process) sends(at int, op lokitest.Op, c loki.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered++
	now := p.world.now()
	if op == lokitest.OpLock && p.claims[c.Token] == nil {
		p.minted = append(p.minted, c.Token)
		p.claims[c.Token] = &claim{number: len(p.claims) + 1, asked: now}
	}
	known := p.claim(c.Token)
	switch {
	case op == lokitest.OpRelease:
		known.releases[at]++
	case at == primary:
		known.asking++
	case p.world.schedule.Mode == Async && known.asking == 0 && known.kept > now && c.Expiry > known.kept-now+time.Millisecond:
		p.world.breach("%s asked for a row of %v when %v were left of its lease", p.name, c.Expiry, known.kept-now)
	}
}

// number is that of a claim.
func (p *process) number(c loki.Claim) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claim(c.Token).number
}

// isTold notes an answer. One for which nobody waits any more tells the process nothing.
func (p *process) isTold(at int, op lokitest.Op, c loki.Claim, sent time.Duration, held bool, err error, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.claim(c.Token)
	heard := err == nil && waits
	if at == primary && op != lokitest.OpRelease {
		switch {
		case !heard: // and it counts as unanswered for ever: the row may be what the lease lives by from now on
		case held:
			known.asking, known.kept = 0, sent+c.Expiry
		default:
			known.asking++
		}
	}
	if !heard {
		return
	}
	p.unanswered--
	switch {
	case op == lokitest.OpRelease:
		known.missing[at] = !held && known.releases[at] == 1 && p.world.now()+p.world.schedule.Expiry/3 < known.trusted
		return
	case !held:
		p.refusals++
	default:
		if op == lokitest.OpLock && slices.Contains(p.minted, c.Token) { // and not the late one of an earlier call
			p.token = c.Token
		}
		if at == secondary || p.world.schedule.Mode != Sync { // where the row is what protects
			known.trusted = max(known.trusted, sent+c.Expiry)
		}
	}
	if at == secondary && op == lokitest.OpLock {
		known.answered = true
	}
}

// perform is one call.
func (p *process) perform(c Call) {
	ctx := p.ctx
	if c.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Patience)
		defer cancel()
	}
	opts := []loki.Option{loki.WithWait(c.Wait)}
	if c.NoRenewal {
		opts = append(opts, loki.WithoutRenewal())
	}
	var out loki.Outcome
	opts = append(opts, loki.WithOutcome(&out))
	p.mu.Lock()
	p.minted = nil
	refusals, unanswered := p.refusals, p.unanswered
	p.mu.Unlock()
	var r *run
	var cause error
	err := p.locker.ExecuteWithinLock(ctx, p.world.schedule.Expiry, func(ctx context.Context) error {
		r = p.begin(ctx)
		p.world.tell("%s runs", p.name)
		retry.Sleep(ctx, c.Works)
		p.endRun() // however long fn is deaf: the lock ends with its context, and so does the promise
		cause = context.Cause(ctx)
		if ctx.Err() != nil && c.Deaf > 0 {
			time.Sleep(c.Deaf)
		}
		return nil
	}, opts...)
	p.world.tell("%s ends: %v", p.name, err)

	p.mu.Lock()
	defer p.mu.Unlock()
	for _, token := range p.minted {
		p.world.over(token, p)
	}
	if p.crashed {
		return
	}
	ran := r != nil
	busy, unavailable := errors.Is(err, loki.ErrBusy), errors.Is(err, loki.ErrUnavailable)
	switch {
	case ran != out.Ran:
		p.world.breach("%s: fn ran is %v, and the outcome says %v", p.name, ran, out.Ran)
	case ran && (busy || unavailable):
		p.world.breach("%s: fn ran, and the error is %v", p.name, err)
	case !ran && !busy && !unavailable && ctx.Err() == nil:
		p.world.breach("%s: fn did not run, and the error is %v", p.name, err)
	case errors.Is(cause, loki.ErrLockLost) && !errors.Is(err, loki.ErrLockLost):
		p.world.breach("%s lost its lock, and the error is %v", p.name, err)
	case ran && errors.Is(err, loki.ErrNotHeld) && !errors.Is(cause, loki.ErrLockLost) && !p.world.missed(r.token):
		p.world.breach("%s was told that its lock was not held when it was released, and every store held it: %v", p.name, err)
	case ran && p.claim(r.token).missing == [2]bool{true, p.world.schedule.Mode != Alone} && !errors.Is(err, loki.ErrLockLost):
		p.world.breach("%s was not told that no store held its lock when it was released: %v", p.name, err)
	case busy && p.refusals == refusals && !errors.Is(err, context.DeadlineExceeded):
		p.world.breach("%s was told busy, and no store had said so: %v", p.name, err)
	case unavailable && p.unanswered == unanswered && unanswered == 0:
		p.world.breach("%s was told unavailable, and every store had answered: %v", p.name, err)
	}
	if ran {
		r.err = err
	}
}

// begin notes that fn starts.
func (p *process) begin(ctx context.Context) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &run{process: p, token: p.token, asked: p.claim(p.token).asked, start: p.world.now(), end: -1}
	if ls, ok := loki.LeaseFromContext(ctx); ok {
		r.fence = ls.Fence()
	}
	p.current = r
	p.world.ran(r)
	return r
}

// endRun notes the end of a run, once, and whether its lease had been confirmed until then.
func (p *process) endRun() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.current
	if r == nil {
		return
	}
	p.current = nil
	known := p.claim(r.token)
	r.end, r.answered = p.world.now(), known.answered
	if trusted := known.trusted; r.end > trusted && !r.crashed {
		p.world.breach("%s ran on until %v under a lock that was confirmed until %v", p.name, r.end, trusted)
	}
}
