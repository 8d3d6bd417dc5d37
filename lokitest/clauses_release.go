package lokitest

import "time"

const releaseLaw = "Release forgets c if, and only if, c.Token still holds c.Key."

var releaseClauses = []clause{
	{
		name: "release-frees",
		law:  releaseLaw,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.release(c)
			p.mustBeFree(c.Key, "after its holder had released it")
		},
	},
	{
		name: "release-by-holder-only",
		law:  releaseLaw,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.release(p.claim(c.Key, lasting)) // of somebody who never held it
			p.mustBeHeld(c.Key, "after a token that never held it had released it")

			refused := p.claim(c.Key, lasting)
			p.lock(refused)
			p.release(refused)
			p.mustBeHeld(c.Key, "after a token that had been refused had released it")
			p.mustLock(c, "to its holder, after others had released it")
		},
	},
	{
		name: "release-after-loss",
		law:  releaseLaw,
		check: func(p *probe) {
			const expiry = 40 * time.Millisecond
			c, a := p.take(p.key("k"), expiry)
			next := p.claim(c.Key, lasting)
			p.mustGetFree(next, expiredBy(a, expiry))
			p.release(c)
			p.mustBeHeld(c.Key, "after the token before it, which had expired, had released it")

			p.release(next)
			p.release(next)
			last, _ := p.take(c.Key, lasting)
			p.release(next)
			p.mustBeHeld(c.Key, "after the token before it had released it once more")
			p.mustLock(last, "to its holder, after the token before it had released it once more")
		},
	},
	{
		name: "release-of-unheld",
		law:  "Releasing what is not held is no error.",
		check: func(p *probe) {
			never := p.claim(p.key("never"), lasting)
			p.release(never)
			p.mustBeFree(never.Key, "after a token that never held it had released it")
			p.release(never)

			c, _ := p.take(p.key("k"), lasting)
			p.release(c)
			p.release(c)
			p.mustBeFree(c.Key, "after its holder had released it twice")
		},
	},
}
