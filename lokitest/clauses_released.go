package lokitest

import (
	"time"

	"github.com/lokilock/loki"
)

const releasedLaw = "Released is the token of the mirrored claim last released on this key, if the store still remembers it, else empty."

// mirrored is a new claim whose token is worth remembering.
func (p *probe) mirrored(key string, expiry time.Duration) loki.Claim {
	c := p.claim(key, expiry)
	c.Mirrored = true
	return c
}

// mustTell demands that got is the token of want. A store that remembers none has nothing more to show.
func (p *probe) mustTell(got string, want loki.Claim, when string) {
	switch got {
	case want.Token:
	case "":
		p.leave("the store does not remember released tokens")
	default:
		p.fail("%s, the token last released is said to be %q; it is %q.", when, got, want.Token)
	}
}

var releasedClauses = []clause{
	{
		name:  "released-is-the-last",
		law:   releasedLaw,
		needs: granter,
		check: func(p *probe) {
			key := p.key("k")
			first, second := p.mirrored(key, lasting), p.mirrored(key, lasting)
			if got := p.mustGrant(first, "although nobody held it").Released; got != "" {
				p.fail("the token %q is said to have been released on a key that nobody has held.", got)
			}
			p.release(first)
			p.mustTell(p.mustGrant(second, "after its holder had released it").Released, first, "after one release")
			p.release(second)
			third := p.mirrored(key, lasting)
			p.mustTell(p.mustGrant(third, "after its holder had released it").Released, second, "after two releases")
			p.mustTell(p.mustGrant(third, "to the token that holds it").Released, second, "to a claim that is granted again")
		},
	},
	{
		name:  "released-only-by-its-holder",
		law:   releasedLaw,
		needs: granter,
		check: func(p *probe) {
			const expiry = 40 * time.Millisecond
			key := p.key("k")
			never, expired := p.mirrored(key, lasting), p.mirrored(key, expiry)
			p.release(never)
			a := p.mustLock(expired, "although nobody held it")
			c := p.mirrored(key, lasting)
			p.mustGetFree(c, expiredBy(a, expiry))
			p.release(expired)
			p.release(never)
			if got := p.mustGrant(c, "to the token that holds it").Released; got != "" {
				p.fail("the token %q is said to have been released, although none was: one had never held the key, one had expired, one holds it.", got)
			}
			p.release(c)
			p.release(never)
			p.mustTell(p.mustGrant(p.mirrored(key, lasting), "after its holder had released it").Released, c, "after others that did not hold the key had released it")
		},
	},
	{
		name:  "released-is-remembered",
		law:   "It has to be remembered for the Expiry of the claim that Release was given.",
		needs: granter,
		check: func(p *probe) {
			// The expiry that Release is given is the longer one. A machine so slow that the claim is over before it is
			// released has shown nothing; a longer expiry will.
			for short := 200 * time.Millisecond; short < callTimeout; short *= 4 {
				c := p.mirrored(p.key(short.String()), short)
				first := p.mustLock(c, "although nobody held it")
				c.Expiry = 3 * short
				a := p.release(c)
				if !certainlyBefore(a.answered, first.sent.Add(short)) {
					continue
				}
				next := p.mirrored(c.Key, lasting)
				p.mustTell(p.mustGrant(next, "after its holder had released it").Released, c, "after one release")
				p.sleepUntil(a.sent.Add(2 * short))
				late := p.ask(next, p.byGrant(next))
				if certainlyBefore(late.answered, a.sent.Add(c.Expiry)) && late.grant.Released != c.Token {
					p.fail("%v after its release, the token of a mirrored claim is no longer remembered; the expiry that Release was given is %v.", late.answered.Sub(a.sent), c.Expiry)
				}
				return
			}
			p.leave("the store was too slow for a memory to be seen")
		},
	},
}
