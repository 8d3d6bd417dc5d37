package lokitest

import (
	"context"
	"time"

	"github.com/lokilock/loki"
)

const inspectLaw = "Inspector is the capability to report who holds a key. False means that it is free."

// inspection is what a look at a key brought, and when. It is not an answer about a claim: nothing has to be released after it.
type inspection struct {
	holder         loki.Holder
	held           bool
	sent, answered time.Time
}

func (p *probe) inspect(key string) inspection {
	ctx, cancel := context.WithTimeout(p.ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	h, held, err := p.handler.(loki.Inspector).Inspect(ctx, key)
	answered := time.Now()
	p.mustAnswer("Inspect", key, err)
	return inspection{h, held, sent, answered}
}

func (p *probe) mustInspect(key string) inspection {
	got := p.inspect(key)
	if !got.held {
		p.fail("Inspect of %q said that nobody holds it, although somebody does.", key)
	}
	return got
}

func (p *probe) mustInspectFree(key, when string) {
	if got := p.inspect(key); got.held {
		p.fail("Inspect of %q said that %q holds it, %s.", key, got.holder.ID, when)
	}
}

var inspectClauses = []clause{
	{
		name:  "inspect-tells-holder",
		law:   "ID is the [Claim.Holder] of the claim that holds.",
		needs: inspector,
		check: func(p *probe) {
			for _, holder := range holders {
				c := p.claim(p.key(randomHex(4)), lasting)
				c.Holder = holder
				p.mustLock(c, "although nobody held it")
				if got := p.mustInspect(c.Key).holder.ID; got != holder {
					p.fail("a key that %q holds is said to be held by %q.", holder, got)
				}
			}
		},
	},
	{
		name:  "inspect-tells-nobody",
		law:   inspectLaw,
		needs: inspector,
		check: func(p *probe) {
			const short = 40 * time.Millisecond
			p.mustInspectFree(p.key("never"), "although nobody ever did")
			p.mustBeFree(p.key("never"), "after somebody had looked")

			released, _ := p.take(p.key("released"), lasting)
			p.release(released)
			p.mustInspectFree(released.Key, "although it was released")

			expired, a := p.take(p.key("expired"), short)
			p.sleepUntil(expiredBy(a, short).Add(grace))
			p.mustInspectFree(expired.Key, "although the claim has expired")
		},
	},
	{
		name:  "inspect-tells-times",
		law:   timesLaw,
		needs: inspector,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			before := p.mustInspect(c.Key).holder
			p.mustBePlausible(before, lasting)
			p.sleep(3 * timeTolerance)
			c.Expiry += timeTolerance
			p.mustLock(c, "to the token that holds it")
			p.mustKeepSince(before, p.mustInspect(c.Key).holder)
		},
	},
	{
		name:  "inspect-changes-nothing",
		law:   inspectLaw,
		needs: inspector,
		check: func(p *probe) {
			const short = 100 * time.Millisecond
			c, a := p.take(p.key("k"), short)
			p.inspect(c.Key)
			p.mustStayHeld(c.Key, a.sent.Add(short))
			p.mustGetFree(p.claim(c.Key, lasting), expiredBy(a, short))
		},
	},
	{
		name:  "inspect-with-ended-context",
		law:   contextLaw,
		needs: inspector,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				_, _, err := p.handler.(loki.Inspector).Inspect(ctx, p.key(name))
				p.mustMatch(ctx, "Inspect", err)
			})
		},
	},
}
