package lokitest

import (
	"fmt"
	"time"
)

// expiries are told apart by what goes wrong with them: less than a millisecond becomes zero, for some stores an error
// and for others no expiry at all; fractions of a second become zero, one second or two. The last one is left out
// where the experiment is repeated by Grant: it takes the longest and has shown its point.
func (p *probe) expiries() []time.Duration {
	all := []time.Duration{400 * time.Microsecond, 40 * time.Millisecond, 250 * time.Millisecond, 1500 * time.Millisecond}
	if p.clause.byGrant {
		return all[:3]
	}
	return all
}

// onEach makes the experiment with every expiry at once, on a key each.
func (p *probe) onEach(expiries []time.Duration, experiment func(key string, expiry time.Duration)) {
	var fns []func()
	for _, expiry := range expiries {
		fns = append(fns, func() { experiment(p.key(fmt.Sprint(expiry)), expiry) })
	}
	p.together(fns...)
}

var expiryClauses = []clause{
	{
		name: "held-for-expiry",
		law:  "c.Token holds c.Key for at least c.Expiry, counted from the moment of the call",
		check: func(p *probe) {
			p.onEach(p.expiries(), func(key string, expiry time.Duration) {
				_, a := p.take(key, expiry)
				p.mustStayHeld(key, a.sent.Add(expiry))
			})
		},
	},
	{
		name: "free-after-expiry",
		law:  "Expiry is how long the store keeps the claim if nobody renews it, to the millisecond",
		check: func(p *probe) {
			p.onEach(p.expiries(), func(key string, expiry time.Duration) {
				_, a := p.take(key, expiry)
				p.mustGetFree(p.claim(key, lasting), expiredBy(a, expiry))
			})
		},
	},
	{
		name: "rounded-up",
		law:  "to the millisecond, rounded up.",
		check: func(p *probe) {
			const expiry = 20*time.Millisecond + 900*time.Microsecond
			_, a := p.take(p.key("k"), expiry)
			p.mustStayHeld(p.key("k"), a.sent.Add(expiry))
		},
	},
	{
		name: "ten-years",
		law:  "c.Token holds c.Key for at least c.Expiry, counted from the moment of the call",
		check: func(p *probe) {
			c, a := p.take(p.key("k"), 10*365*24*time.Hour)
			p.mustBeHeld(c.Key, "although the first one holds it for ten years")
			p.mustStayHeld(c.Key, a.sent.Add(50*time.Millisecond))
		},
	},
	{
		name: "again-for-longer",
		law:  "Lock of a claim that already holds succeeds and starts its expiry anew",
		check: func(p *probe) {
			const short = 150 * time.Millisecond
			c, a := p.take(p.key("k"), short)
			c.Expiry = lasting
			p.mustLock(c, "to the token that holds it, for longer")
			p.sleepUntil(expiredBy(a, short))
			p.mustBeHeld(c.Key, fmt.Sprintf("when the first one's expiry of %v had passed, although it had locked again for %v since", short, lasting))
		},
	},
	{
		name: "again-for-shorter",
		law:  "The new expiry may be shorter than what was left.",
		check: func(p *probe) {
			const short = 100 * time.Millisecond
			c, _ := p.take(p.key("k"), lasting)
			c.Expiry = short
			a := p.mustLock(c, "to the token that holds it, for a shorter time")
			p.mustStayHeld(c.Key, a.sent.Add(short))
			p.mustGetFree(p.claim(c.Key, lasting), expiredBy(a, short))
		},
	},
}
