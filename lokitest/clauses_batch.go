package lokitest

import (
	"context"
	"errors"
	"time"

	"github.com/lokilock/loki"
)

const (
	batchLaw       = "ExtendAll returns an answer for each claim, in their order: what Extend would have returned."
	batchAtomicLaw = "Each claim is an atomic step of its own, and what becomes of one does not change the answer to another."
)

// extendAll makes one call for claims. Of an answer that is an error nothing is known.
func (p *probe) extendAll(claims ...loki.Claim) []loki.Extended {
	var answers []loki.Extended
	a := p.ask(loki.Claim{}, func(ctx context.Context, a *answer) {
		answers, a.err = p.handler.(loki.BatchExtender).ExtendAll(ctx, claims)
	})
	if a.err != nil {
		p.fail("ExtendAll of %d claims returned an error of a store that should be healthy: %v", len(claims), a.err)
	}
	if len(answers) != len(claims) {
		p.fail("ExtendAll returned %d answers to %d claims.", len(answers), len(claims))
	}
	return answers
}

// mustExtend demands those answers.
func (p *probe) mustExtend(claims []loki.Claim, want ...bool) {
	for i, a := range p.extendAll(claims...) {
		p.mustAnswer("ExtendAll", claims[i].Key, a.Err)
		if a.Held != want[i] {
			p.fail("ExtendAll returned %v for %q, which was claim %d of %d, instead of %v.", a.Held, claims[i].Key, i+1, len(claims), want[i])
		}
	}
}

var batchClauses = []clause{
	{
		name:  "extend-all-in-order",
		law:   batchLaw,
		needs: batchExtender,
		check: func(p *probe) {
			first, _ := p.take(p.key("first"), lasting)
			taken, _ := p.take(p.key("taken"), lasting)
			other := p.claim(taken.Key, lasting)
			released, _ := p.take(p.key("released"), lasting)
			p.release(released)
			last, _ := p.take(p.key("last"), lasting)
			never := p.claim(p.key("never"), lasting)
			p.mustExtend([]loki.Claim{first, other, released, never, last}, true, false, false, false, true)
			p.mustExtend([]loki.Claim{never, last, taken}, false, true, true)
			p.mustBeFree(released.Key, "after a claim that had been released was to be extended, with others")
			p.mustBeFree(never.Key, "after a claim that never held was to be extended, with others")
			p.mustLock(taken, "to its holder, after another one had asked to extend it, with others")
		},
	},
	{
		name:  "extend-all-for-each-expiry",
		law:   batchLaw,
		needs: batchExtender,
		check: func(p *probe) {
			const short = 100 * time.Millisecond
			long, _ := p.take(p.key("long"), lasting)
			brief, _ := p.take(p.key("brief"), lasting)
			another, _ := p.take(p.key("another"), lasting)
			brief.Expiry = short
			sent := time.Now()
			p.mustExtend([]loki.Claim{long, brief, another}, true, true, true)
			answered := time.Now()
			p.mustStayHeld(brief.Key, sent.Add(short))
			p.mustGetFree(p.claim(brief.Key, lasting), answered.Add(short))
			p.mustBeHeld(long.Key, "when the expiry of another one had passed, which had been extended with it")
			p.mustBeHeld(another.Key, "when the expiry of another one had passed, which had been extended with it")
		},
	},
	{
		name:  "extend-all-many",
		law:   batchLaw,
		needs: batchExtender,
		check: func(p *probe) {
			const many = 128 // as many as the Locker sends
			claims, want := make([]loki.Claim, many), make([]bool, many)
			for i := range claims {
				claims[i] = p.claim(p.key(randomHex(4)), lasting)
				if want[i] = i%3 != 1; want[i] {
					p.mustLock(claims[i], "although no claim held it")
				}
			}
			p.mustExtend(claims, want...)
		},
	},
	{
		name:  "extend-all-none",
		law:   "No claims are no error.",
		needs: batchExtender,
		check: func(p *probe) { p.extendAll() },
	},
	{
		name:  "extend-all-with-a-bad-claim",
		law:   batchAtomicLaw,
		needs: batchExtender,
		check: func(p *probe) {
			first, _ := p.take(p.key("first"), lasting)
			last, _ := p.take(p.key("last"), lasting)
			bad := p.claim(p.key("bad"), lasting)
			bad.Expiry = 0 // whatever a handler says to that
			answers := p.extendAll(first, bad, last)
			for i, c := range map[int]loki.Claim{0: first, 2: last} {
				if p.mustAnswer("ExtendAll", c.Key, answers[i].Err); !answers[i].Held {
					p.fail("ExtendAll returned false for %q, which its claim holds, beside a claim with an expiry of zero.", c.Key)
				}
			}
		},
	},
}

// byExtendAll asks for a renewal beside others, one of which does not hold.
func (p *probe) byExtendAll(c loki.Claim) func(context.Context, *answer) {
	claims := []loki.Claim{p.claim(p.key("free"), lasting), c, p.claim(p.key("free too"), lasting)}
	return func(ctx context.Context, a *answer) {
		answers, err := p.handler.(loki.BatchExtender).ExtendAll(ctx, claims)
		switch {
		case err != nil:
			a.err = err
		case len(answers) != len(claims):
			a.err = errors.New("it has not returned an answer for each claim")
		default:
			a.held, a.err = answers[1].Held, answers[1].Err
		}
	}
}
