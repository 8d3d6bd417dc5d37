package lokitest

import (
	"runtime"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
)

// grace is how long after its expiry a claim may still be found held. A store that is exact needs none: the call that
// finds it held was sent after the expiry had passed. It is for clocks that run at different rates.
const grace = 200 * time.Millisecond

// The steps of experiments. Each one demands an answer; one that is named "must" demands a certain one.

// mustAnswer demands that a call of a method was answered.
func (p *probe) mustAnswer(method, key string, err error) {
	if err != nil {
		p.fail("%s of %q returned an error of a store that should be healthy: %v", method, key, err)
	}
}

// lock asks once.
func (p *probe) lock(c loki.Claim) answer {
	a := p.ask(c, p.byLock(c))
	p.mustAnswer("Lock", c.Key, a.err)
	return a
}

// mustLock demands that c is granted; when completes the sentence "it was refused ...".
func (p *probe) mustLock(c loki.Claim, when string) answer {
	a := p.lock(c)
	if !a.held {
		p.fail("Lock of %q was refused %s.", c.Key, when)
	}
	return a
}

// take has key granted to a new claim.
func (p *probe) take(key string, expiry time.Duration) (loki.Claim, answer) {
	c := p.claim(key, expiry)
	return c, p.mustLock(c, "although nobody held it")
}

// mustBeHeld demands that a new claim on key is refused.
func (p *probe) mustBeHeld(key, when string) {
	if p.lock(p.claim(key, lasting)).held {
		p.fail("Lock of %q was granted to a second token %s.", key, when)
	}
}

// mustBeFree demands that a new claim on key is granted, and gives it back.
func (p *probe) mustBeFree(key, when string) {
	c := p.claim(key, lasting)
	p.mustLock(c, when)
	p.release(c)
}

func (p *probe) release(c loki.Claim) answer {
	a := p.ask(c, p.byRelease(c))
	p.mustAnswer("Release", c.Key, a.err)
	p.isOver(c)
	return a
}

// mustStayHeld demands that nobody else gets key before end. It asks until then, and a last time just before it.
//
// What is granted to an answer that came after end proves nothing: a slow machine cannot fail a good store, nor can
// one whose wall clock is corrected meanwhile.
func (p *probe) mustStayHeld(key string, end time.Time) {
	const lastLook = 250 * time.Microsecond
	rival := p.claim(key, lasting)
	pace := max(time.Until(end)/50, 2*time.Millisecond)
	for {
		a := p.lock(rival)
		if a.held && certainlyBefore(a.answered, end) {
			p.fail("Lock of %q was granted to a second token %v before the first one's expiry was over.", key, end.Sub(a.answered))
		}
		left := time.Until(end) - lastLook
		if a.held || left <= 0 {
			p.release(rival)
			return
		}
		p.sleep(min(pace, left))
	}
}

// mustGetFree demands that key is free from end on, and takes it with rival. It judges calls that were sent after end
// by more than the grace, however late they are answered: a slow machine cannot fail a good store.
func (p *probe) mustGetFree(rival loki.Claim, end time.Time) {
	p.sleepUntil(end)
	for {
		a := p.lock(rival)
		if a.held {
			return
		}
		if late := a.sent.Sub(end); late > grace {
			p.fail("Lock of %q was refused %v after the expiry of the claim that held it.", rival.Key, late)
		}
		p.sleep(10 * time.Millisecond)
	}
}

// certainlyBefore reports whether a is before b by the wall clock too. A store counts an expiry by a wall clock, usually by
// that of this machine, which may be set forward or run fast for a while, as when a virtual machine resumes. Go's monotonic
// clock does neither.
func certainlyBefore(a, b time.Time) bool {
	return a.Before(b) && a.Round(0).Before(b.Round(0)) // Round(0) strips the monotonic reading
}

// expiredBy is the moment from which a claim that a brought is over: the store counted from no later than the answer.
func expiredBy(a answer, expiry time.Duration) time.Time {
	return a.answered.Add(expiry + time.Millisecond) // a store rounds up
}

// sleep pauses for the sake of what the clause says about time, not for anything to happen.
func (p *probe) sleep(d time.Duration) {
	if !retry.Sleep(p.ctx, d) {
		runtime.Goexit()
	}
}

func (p *probe) sleepUntil(t time.Time) { p.sleep(time.Until(t)) }
