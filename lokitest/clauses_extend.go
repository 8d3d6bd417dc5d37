package lokitest

import (
	"context"
	"time"

	"github.com/lokilock/loki"
)

const (
	extendLaw   = "c.Token held c.Key and holds it for c.Expiry from the moment of the call (shorter or longer than before)"
	noExtendLaw = "c.Token does not hold c.Key; nothing was changed"
)

func (p *probe) extend(c loki.Claim) answer {
	a := p.ask(c, p.byExtend(c))
	p.mustAnswer("Extend", c.Key, a.err)
	return a
}

func (p *probe) mustNotExtend(c loki.Claim, when string) {
	if p.extend(c).held {
		p.fail("Extend of %q returned true to a token %s.", c.Key, when)
	}
}

var extendClauses = []clause{
	{
		name:  "extend-for-longer",
		law:   extendLaw,
		needs: extender,
		check: func(p *probe) {
			// A machine so slow that the claim is over before the call is answered has shown nothing; a longer expiry will.
			for short := 300 * time.Millisecond; short < callTimeout; short *= 4 {
				c, first := p.take(p.key(short.String()), short)
				c.Expiry = lasting
				a := p.extend(c)
				if !a.held && certainlyBefore(a.answered, first.sent.Add(short)) {
					p.fail("Extend of %q was refused to its holder, %v before its expiry.", c.Key, first.sent.Add(short).Sub(a.answered))
				}
				if a.held {
					p.sleepUntil(expiredBy(first, short))
					p.mustBeHeld(c.Key, "when the first one's expiry had passed, although it had been extended since")
					return
				}
			}
			p.leave("the store was too slow for a renewal to be seen")
		},
	},
	{
		name:  "extend-for-shorter",
		law:   extendLaw,
		needs: extender,
		check: func(p *probe) {
			const short = 100 * time.Millisecond
			c, _ := p.take(p.key("k"), lasting)
			c.Expiry = short
			a := p.extend(c)
			if !a.held {
				p.fail("Extend of %q was refused to its holder.", c.Key)
			}
			p.mustStayHeld(c.Key, a.sent.Add(short))
			p.mustGetFree(p.claim(c.Key, lasting), expiredBy(a, short))
		},
	},
	{
		name:  "extend-by-holder-only",
		law:   noExtendLaw,
		needs: extender,
		check: func(p *probe) {
			const short = 100 * time.Millisecond
			c, a := p.take(p.key("k"), short)
			p.mustNotExtend(p.claim(c.Key, lasting), "that never held it, while another did")
			p.mustGetFree(p.claim(c.Key, lasting), expiredBy(a, short))
			p.mustNotExtend(c, "whose claim had expired and whose key another one had taken since")
			p.mustBeHeld(c.Key, "after one whose claim had expired had asked to be extended")
		},
	},
	{
		name:  "extend-never-takes",
		law:   "Extender is the capability to renew a claim without ever taking it anew.",
		needs: extender,
		check: func(p *probe) {
			const short = 40 * time.Millisecond
			never := p.claim(p.key("never"), lasting)
			p.mustNotExtend(never, "that never held it, while nobody did")
			p.mustBeFree(never.Key, "after somebody who never held it had asked to extend it")

			released, _ := p.take(p.key("released"), lasting)
			p.release(released)
			p.mustNotExtend(released, "that had released it")
			p.mustBeFree(released.Key, "after somebody who had released it had asked to extend it")

			expired, a := p.take(p.key("expired"), short)
			p.sleepUntil(expiredBy(a, short).Add(grace))
			expired.Expiry = lasting
			p.mustNotExtend(expired, "whose claim had expired")
			p.mustBeFree(expired.Key, "after somebody whose claim had expired had asked to extend it")
		},
	},
	{
		name:  "extend-supersedes-nobody",
		law:   noExtendLaw,
		needs: extender,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.mustNotExtend(p.superseding(c.Key, c.Token), "that never held it, whose claim supersedes the one that does")
			p.mustLock(c, "to its holder, after a claim that supersedes it had asked to be extended")
		},
	},
	{
		name:  "extend-with-ended-context",
		law:   contextLaw,
		needs: extender,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				const short = 100 * time.Millisecond
				c, a := p.take(p.key(name), short)
				c.Expiry = lasting
				p.mustMatch(ctx, "Extend", p.askWith(ctx, c, p.byExtend(c)).err)
				p.mustGetFree(p.claim(c.Key, lasting), expiredBy(a, short))
			})
		},
	},
}

// byExtend asks for a renewal.
func (p *probe) byExtend(c loki.Claim) func(context.Context, *answer) {
	if p.clause.byExtendAll {
		return p.byExtendAll(c)
	}
	return func(ctx context.Context, a *answer) { a.held, a.err = p.handler.(loki.Extender).Extend(ctx, c) }
}
