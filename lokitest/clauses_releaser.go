package lokitest

import (
	"context"
	"time"

	"github.com/lokilock/loki"
)

const (
	foundLaw    = "c.Token held c.Key until now"
	notFoundLaw = "c.Token did not hold c.Key when this request arrived; nothing was changed"
)

// byRelease releases c by the method that the clause is about.
func (p *probe) byRelease(c loki.Claim) func(context.Context, *answer) {
	if p.clause.byReleaseHeld {
		return p.byReleaseHeld(c)
	}
	return func(ctx context.Context, a *answer) { a.err = p.handler.Release(ctx, c) }
}

// byReleaseHeld releases c. That it was held is no answer of a grant: see [probe.askWith].
func (p *probe) byReleaseHeld(c loki.Claim) func(context.Context, *answer) {
	return func(ctx context.Context, a *answer) { a.found, a.err = p.handler.(loki.Releaser).ReleaseHeld(ctx, c) }
}

// releaseHeld returns what ReleaseHeld reports.
func (p *probe) releaseHeld(c loki.Claim) (found bool) {
	a := p.ask(c, p.byReleaseHeld(c))
	p.mustAnswer("ReleaseHeld", c.Key, a.err)
	return a.found
}

func (p *probe) mustNotFind(c loki.Claim, when string) {
	if p.releaseHeld(c) {
		p.fail("ReleaseHeld of %q returned true to a token %s.", c.Key, when)
	}
}

// releaserClauses are about the answer. That ReleaseHeld releases as Release does is a matter of the clauses of Release.
var releaserClauses = []clause{
	{
		name:  "releaser-reports-held",
		law:   foundLaw,
		needs: releaser,
		check: func(p *probe) {
			first, _ := p.take(p.key("k"), lasting)
			p.mustLock(first, "to its own token")
			for c, when := first, "once"; ; when = "again, by another" {
				if !p.releaseHeld(c) {
					p.fail("ReleaseHeld of %q returned false to its holder; the key had been taken %s.", c.Key, when)
				}
				if c != first {
					return
				}
				c, _ = p.take(c.Key, lasting)
			}
		},
	},
	{
		name:  "releaser-reports-not-held",
		law:   notFoundLaw,
		needs: releaser,
		check: func(p *probe) {
			p.mustNotFind(p.claim(p.key("never"), lasting), "that never held it, while nobody did")

			c, _ := p.take(p.key("k"), lasting)
			p.mustNotFind(p.claim(c.Key, lasting), "that never held it, while another did")
			p.mustBeHeld(c.Key, "after a token that never held it had released it")
			p.release(c)
			p.mustNotFind(c, "that had released it")
		},
	},
	{
		name:  "releaser-reports-loss",
		law:   notFoundLaw,
		needs: releaser,
		check: func(p *probe) {
			const short = 40 * time.Millisecond
			over, a := p.take(p.key("over"), short)
			p.sleepUntil(expiredBy(a, short).Add(grace))
			p.mustNotFind(over, "whose claim had expired")
			p.mustBeFree(over.Key, "after somebody whose claim had expired had released it")

			c, a := p.take(p.key("k"), short)
			next := p.claim(c.Key, lasting)
			p.mustGetFree(next, expiredBy(a, short))
			p.mustNotFind(c, "whose claim had expired and whose key another one had taken since")
			p.mustBeHeld(next.Key, "after the token before it, which had expired, had released it")
		},
	},
	{
		name:  "releaser-with-ended-context",
		law:   contextLaw,
		needs: releaser,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				c, _ := p.take(p.key(name), lasting)
				a := p.askWith(ctx, c, p.byReleaseHeld(c))
				p.mustMatch(ctx, "ReleaseHeld", a.err)
				p.mustBeHeld(c.Key, "although the only ReleaseHeld before came with a context that had ended, and nothing should have been sent")
			})
		},
	},
}
