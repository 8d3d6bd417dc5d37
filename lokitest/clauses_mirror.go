package lokitest

import "github.com/lokilock/loki"

const supersedesLaw = "is the token of a claim that is known to be over: a record of it under Key is replaced as if it had expired."

// superseding is a new claim on key.
func (p *probe) superseding(key, token string) loki.Claim {
	c := p.claim(key, lasting)
	c.Supersedes = token
	return c
}

var mirrorClauses = []clause{
	{
		name: "superseded-is-replaced",
		law:  supersedesLaw,
		check: func(p *probe) {
			old, _ := p.take(p.key("k"), lasting)
			c := p.superseding(old.Key, old.Token)
			p.mustLock(c, "although only the token that the claim supersedes held it")
			p.mustBeHeld(c.Key, "although a claim that superseded another holds it")
			p.mustLock(c, "to the token that holds it; the one it supersedes is gone")
			p.release(old)
			p.mustBeHeld(c.Key, "after the superseded token had released it")
			if p.lock(old).held {
				p.fail("Lock of %q was granted to the superseded token, although the one that replaced it holds.", c.Key)
			}
		},
	},
	{
		name: "superseded-and-no-other",
		law:  supersedesLaw,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			elsewhere, _ := p.take(p.key("elsewhere"), lasting)
			if p.lock(p.superseding(c.Key, p.claim(c.Key, lasting).Token)).held {
				p.fail("Lock of %q was granted to a claim that supersedes a token, although another token than that holds it.", c.Key)
			}
			if p.lock(p.superseding(c.Key, elsewhere.Token)).held {
				p.fail("Lock of %q was granted to a claim that supersedes a token, although that one holds another key.", c.Key)
			}
			p.mustLock(c, "to its holder, after claims that supersede others had been refused")

			p.mustLock(p.superseding(p.key("free"), elsewhere.Token), "although nobody held it; the claim supersedes the holder of another key")
			p.mustBeHeld(elsewhere.Key, "although only under another key its holder was superseded")
			p.mustLock(elsewhere, "to its holder, who was superseded under another key only")
		},
	},
	{
		name: "mirrored-is-held-alike",
		law:  "Mirrored says that another store may know this claim too. The answer does not depend on it.",
		check: func(p *probe) {
			plain, _ := p.take(p.key("plain"), lasting)
			rival := p.claim(plain.Key, lasting)
			rival.Mirrored = true
			if p.lock(rival).held {
				p.fail("Lock of %q was granted to a second token, because its claim is mirrored.", plain.Key)
			}

			c := p.claim(p.key("k"), lasting)
			c.Mirrored = true
			p.mustLock(c, "although nobody held it; the claim is mirrored")
			p.mustBeHeld(c.Key, "although the first one holds it with a mirrored claim")
			p.mustLock(c, "to the token that holds it with a mirrored claim")
			p.release(c)
			p.mustBeFree(c.Key, "after the holder of a mirrored claim had released it")
		},
	},
}
