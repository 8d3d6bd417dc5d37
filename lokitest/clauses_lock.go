package lokitest

import "time"

var lockClauses = []clause{
	{
		name:  "does-not-wait",
		law:   "Lock tries once, without waiting, to record c.",
		first: true,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), 2*callTimeout)
			if a := p.lock(p.claim(c.Key, lasting)); a.answered.Sub(a.sent) > callTimeout/2 {
				p.fail("Lock of %q, which was held, took %v to answer.", c.Key, a.answered.Sub(a.sent))
			}
		},
	},
	{
		name: "free-is-granted",
		law:  "true, nil c.Token holds c.Key",
		check: func(p *probe) {
			p.take(p.key("k"), lasting)
		},
	},
	{
		name: "busy-is-an-answer",
		law:  "false, nil another token holds it: an answer, not a failure",
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.mustBeHeld(c.Key, "although the first one holds it")
			p.mustBeHeld(c.Key, "that asked after another one had been refused")
		},
	},
	{
		name: "again-is-granted",
		law:  "Lock of a claim that already holds succeeds and starts its expiry anew, so a repeated call is safe.",
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.mustLock(c, "to the token that holds it")
			p.mustBeHeld(c.Key, "after the first one had locked again")
			p.mustLock(c, "to the token that holds it, after a rival had been refused")
		},
	},
	{
		name: "taken-is-refused",
		law:  "false, nil another token holds it: an answer, not a failure",
		check: func(p *probe) {
			const expiry = 40 * time.Millisecond
			c, a := p.take(p.key("k"), expiry)
			next := p.claim(c.Key, lasting)
			p.mustGetFree(next, expiredBy(a, expiry))
			if p.lock(c).held {
				p.fail("Lock of %q was granted to a token whose claim had expired and whose key another one had taken since.", c.Key)
			}
			p.mustLock(next, "to the token that holds it, after the one before it had come back")
		},
	},
}
