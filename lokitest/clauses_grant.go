package lokitest

import (
	"strings"
	"time"

	"github.com/lokilock/loki"
)

// holders are hard to tell verbatim.
var holders = []string{
	"web-1/4711",
	"  two blanks  ahead, inside and behind  ",
	`quotes ' '' " \ and {braces} %s %00 ; --`,
	"\u0441\u0435\u0440\u0432\u0435\u0440 \u65e5\u672c \U0001f512 cafe\u0301",
	strings.Repeat("h", 199) + "!",
}

// timeTolerance is for the precision of stores' clocks, not for the speed of machines: the times that are compared come
// from the store.
const timeTolerance = 50 * time.Millisecond

// grant asks by Grant, whatever the clause asks by.
func (p *probe) grant(c loki.Claim) loki.Grant {
	a := p.ask(c, p.byGrant(c))
	p.mustAnswer("Grant", c.Key, a.err)
	return a.grant
}

func (p *probe) mustGrant(c loki.Claim, when string) loki.Grant {
	g := p.grant(c)
	if !g.Held {
		p.fail("Grant of %q was refused %s.", c.Key, when)
	}
	return g
}

// heldBy is what a refused rival is told.
func (p *probe) heldBy(key string) loki.Holder { return p.refusal(key).grant.HeldBy }

func (p *probe) refusal(key string) answer {
	c := p.claim(key, lasting)
	a := p.ask(c, p.byGrant(c))
	p.mustAnswer("Grant", key, a.err)
	if a.held {
		p.fail("Grant of %q was granted to a second token.", key)
	}
	return a
}

// mustBePlausible compares the times of a claim that was granted for expiry and not renewed.
func (p *probe) mustBePlausible(h loki.Holder, expiry time.Duration) {
	if h.Since.IsZero() || h.Until.IsZero() {
		p.note("the store does not tell both times of a holder: since %v, until %v", h.Since, h.Until)
		return
	}
	if d := h.Until.Sub(h.Since); (d - expiry).Abs() > timeTolerance {
		p.fail("a claim of %v is said to hold since %v until %v, which is %v.", expiry, h.Since, h.Until, d)
	}
}

// mustKeepSince compares what is told before and after a claim was renewed for longer.
func (p *probe) mustKeepSince(before, after loki.Holder) {
	if before.Since.IsZero() || before.Until.IsZero() {
		p.leave("the store does not tell both times of a holder")
	}
	if d := after.Since.Sub(before.Since); d.Abs() > timeTolerance {
		p.fail("a claim that was granted again is said to hold since %v, and before that since %v.", after.Since, before.Since)
	}
	if !after.Until.After(before.Until) {
		p.fail("a claim that was granted again for longer is said to hold until %v, and before that until %v.", after.Until, before.Until)
	}
}

const timesLaw = "Since and Until are the times of the claim's first grant and of its expiry, by the store's clock."

var grantClauses = []clause{
	{
		name:  "grant-is-lock",
		law:   "Held is what [LockHandler.Lock] would have returned.",
		needs: granter,
		check: func(p *probe) {
			locked, _ := p.take(p.key("locked"), lasting)
			if p.grant(p.claim(locked.Key, lasting)).Held {
				p.fail("Grant of %q was granted to a second token, although Lock had granted it to the first.", locked.Key)
			}
			p.mustGrant(locked, "to the token to which Lock had granted it")

			granted := p.claim(p.key("granted"), lasting)
			p.mustGrant(granted, "although nobody held it")
			p.mustBeHeld(granted.Key, "although Grant had granted it to the first")
			p.mustLock(granted, "to the token to which Grant had granted it")
			p.release(granted)
			p.mustBeFree(granted.Key, "after its holder, to whom Grant had granted it, had released it")
		},
	},
	{
		name:  "grant-tells-holder",
		law:   "HeldBy says who holds the key, if not Held, as far as the store knows.",
		needs: granter,
		check: func(p *probe) {
			for _, holder := range holders {
				c := p.claim(p.key(randomHex(4)), lasting)
				c.Holder = holder
				p.mustGrant(c, "although nobody held it")
				switch got := p.heldBy(c.Key).ID; got {
				case "":
					p.leave("the store does not know who holds a key")
				case holder:
				default:
					p.fail("a key that %q holds is said to be held by %q.", holder, got)
				}
			}
		},
	},
	{
		name:  "grant-tells-times",
		law:   timesLaw,
		needs: granter,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			p.mustBePlausible(p.heldBy(c.Key), lasting)
		},
	},
	{
		name:  "grant-keeps-since",
		law:   timesLaw,
		needs: granter,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			before := p.heldBy(c.Key)
			p.sleep(3 * timeTolerance)
			c.Expiry += timeTolerance
			p.mustGrant(c, "to the token that holds it")
			p.mustKeepSince(before, p.heldBy(c.Key))
		},
	},
}
