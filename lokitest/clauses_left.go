package lokitest

import "time"

const leftLaw = "Left is how long from the answer until the claim expires, if it is not renewed: what a client can wait for, whose clock is not the store's."

// mustTellLeft looks at a claim when it is new, when it has grown older, and when it has been granted again.
func (p *probe) mustTellLeft(at func(key string) inspection) {
	c, granted := p.take(p.key("k"), lasting)
	p.mustBeLeft(at(c.Key), granted, c.Expiry)
	p.sleep(4 * timeTolerance)
	p.mustBeLeft(at(c.Key), granted, c.Expiry)

	c.Expiry = lasting / 2
	granted = p.mustLock(c, "to the token that holds it, for a shorter time")
	p.mustBeLeft(at(c.Key), granted, c.Expiry)
	c.Expiry = lasting
	granted = p.mustLock(c, "to the token that holds it, for a longer time")
	p.mustBeLeft(at(c.Key), granted, c.Expiry)
}

// mustBeLeft compares with what is left by the clock here, as precisely as the times of the two calls allow: a slow
// machine cannot fail a good store.
func (p *probe) mustBeLeft(at inspection, granted answer, expiry time.Duration) {
	if at.holder.Left == 0 {
		p.leave("the store does not tell how long a claim has left")
	}
	least := expiry - at.answered.Sub(granted.sent) - timeTolerance
	most := expiry - at.sent.Sub(granted.answered) + time.Millisecond + timeTolerance // a store rounds up
	if at.holder.Left < least || at.holder.Left > most {
		p.fail("a claim of %v is said to have %v left, %v after it was granted; that is not between %v and %v.",
			expiry, at.holder.Left, at.sent.Sub(granted.answered), least, most)
	}
}

var leftClauses = []clause{
	{
		name:  "grant-tells-left",
		law:   leftLaw,
		needs: granter,
		check: func(p *probe) {
			p.mustTellLeft(func(key string) inspection {
				a := p.refusal(key)
				return inspection{holder: a.grant.HeldBy, sent: a.sent, answered: a.answered}
			})
		},
	},
	{
		name:  "inspect-tells-left",
		law:   leftLaw,
		needs: inspector,
		check: func(p *probe) {
			p.mustTellLeft(p.mustInspect)
		},
	},
}
