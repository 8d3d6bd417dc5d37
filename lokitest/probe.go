package lokitest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lokilock/loki"
)

const (
	// lasting is the expiry of a claim that is to hold for the whole experiment, on however slow a machine. It is
	// short enough for what a crashed run leaves in a shared store.
	lasting = time.Minute

	// callTimeout is far more than a healthy store needs: no call of the suite hangs longer, if ctx is honoured.
	callTimeout = 10 * time.Second
)

// probe makes the experiment of one clause.
//
// A broken clause ends the goroutine that found it, as testing.T does; probe has goroutines of its own for that, so that
// every goroutine of an experiment may find it, and no test goroutine is ended from outside.
type probe struct {
	ctx     context.Context
	stop    context.CancelFunc // ends ctx, and with it what listens
	handler loki.LockHandler
	clause  clause
	prefix  string // of every key: nobody else's

	mu      sync.Mutex            // guards what follows
	verdict verdict               // the first one found counts
	open    map[string]loki.Claim // by token: what the store may still hold
}

func newProbe(ctx context.Context, c clause, h loki.LockHandler) *probe {
	ctx, stop := context.WithCancel(ctx)
	return &probe{
		ctx: ctx, stop: stop, handler: h, clause: c,
		prefix: "lokitest-" + randomHex(8) + "-",
		open:   make(map[string]loki.Claim),
	}
}

// run calls all fns at once and returns when the last has ended. No caller could recover a panic of the handler there, so
// it breaks the clause.
func (p *probe) run(fns ...func()) {
	var wg sync.WaitGroup
	for _, fn := range fns {
		wg.Go(func() {
			defer func() {
				if reason := recover(); reason != nil {
					p.fail("the handler panicked: %v\n%s", reason, debug.Stack())
				}
			}()
			fn()
		})
	}
	wg.Wait()
}

// together is run within an experiment: if one of fns found the clause broken, the experiment is over.
func (p *probe) together(fns ...func()) {
	p.run(fns...)
	p.mu.Lock()
	over := p.verdict.broken != ""
	p.mu.Unlock()
	if over {
		runtime.Goexit()
	}
}

// fail says how the clause was broken and ends the goroutine. What comes of the end of the suite's own context breaks
// nothing.
func (p *probe) fail(format string, args ...any) {
	p.mu.Lock()
	if p.verdict.broken == "" && p.ctx.Err() == nil {
		p.verdict.broken = fmt.Sprintf("the handler breaks the clause %q, which says\n\t%q\nHere, %s", p.clause.name, p.clause.law, fmt.Sprintf(format, args...))
	}
	p.mu.Unlock()
	runtime.Goexit()
}

// note tells people something that breaks nothing.
func (p *probe) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verdict.notes = append(p.verdict.notes, fmt.Sprintf(format, args...))
}

// leave ends the experiment for a reason that breaks nothing.
func (p *probe) leave(format string, args ...any) {
	p.note(format, args...)
	runtime.Goexit()
}

func (p *probe) key(name string) string { return p.prefix + name }

// claim mints one.
func (p *probe) claim(key string, expiry time.Duration) loki.Claim {
	return loki.Claim{Key: key, Token: randomHex(16), Expiry: expiry, Holder: "lokitest " + p.prefix}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// answer is what a call brought, and when: whatever the store did, it did between sent and answered.
type answer struct {
	held           bool
	found          bool       // of a call of ReleaseHeld
	grant          loki.Grant // of a call of Grant
	err            error
	sent, answered time.Time
}

// ask makes one call about c.
func (p *probe) ask(c loki.Claim, call func(context.Context, *answer)) answer {
	ctx, cancel := context.WithTimeout(p.ctx, callTimeout)
	defer cancel()
	return p.askWith(ctx, c, call)
}

func (p *probe) askWith(ctx context.Context, c loki.Claim, call func(context.Context, *answer)) answer {
	a := answer{sent: time.Now()}
	call(ctx, &a)
	a.answered = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.held || a.grant.Held || a.err != nil {
		p.open[c.Token] = c
	}
	return a
}

// byLock and byGrant are the two ways to ask for a lock.
func (p *probe) byLock(c loki.Claim) func(context.Context, *answer) {
	if p.clause.byGrant {
		return p.byGrant(c)
	}
	return func(ctx context.Context, a *answer) { a.held, a.err = p.handler.Lock(ctx, c) }
}

func (p *probe) byGrant(c loki.Claim) func(context.Context, *answer) {
	return func(ctx context.Context, a *answer) {
		a.grant, a.err = p.handler.(loki.Granter).Grant(ctx, c)
		a.held = a.grant.Held
	}
}

// isOver says that the store holds c no longer.
func (p *probe) isOver(c loki.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c.Token)
}

// cleanUp ends what listens and releases what the store may still hold. An experiment that found a clause broken may
// have left more, until it expires.
func (p *probe) cleanUp() {
	p.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), callTimeout)
	defer cancel()
	for _, c := range p.open {
		if err := p.handler.Release(ctx, c); err != nil {
			p.note("the key %q could not be released and stays until its claim expires: %v", c.Key, err)
		}
	}
}
