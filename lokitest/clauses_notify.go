package lokitest

import (
	"context"
	"fmt"
	"time"
)

const (
	tellLaw    = "whatever frees key from then on is told by a value on the channel"
	earlierLaw = "and so is whatever makes it free earlier than was said before."
)

// A value too many breaks none of these: "there may be more of them than needed".
var notifyClauses = []clause{
	{
		name:  "notify-tells-release",
		law:   tellLaw,
		needs: notifier,
		check: func(p *probe) {
			early := p.listen(p.key("k")) // nobody holds it, and nobody ever did
			for range 3 {
				c, _ := p.take(early.key, lasting)
				p.mustBeTold("a release", func() { p.release(c) }, early)
			}
			c, _ := p.take(early.key, lasting)
			late := p.listen(early.key)
			p.mustBeTold("a release", func() { p.release(c) }, early, late)
		},
	},
	{
		name:  "notify-tells-everybody",
		law:   tellLaw,
		needs: notifier,
		check: func(p *probe) {
			key := p.key("k")
			all := make([]listener, racers)
			p.atOnce(len(all), func(i int) { all[i] = p.listen(key) })
			c, _ := p.take(key, lasting)
			p.mustBeTold("a release, which others were to be told of, too", func() { p.release(c) }, all...)

			for _, l := range all[:len(all)/2] {
				l.stop()
			}
			p.sleep(shortly) // for what the end of one may do to the others
			c, _ = p.take(key, lasting)
			p.mustBeTold("a release; others had listened before, whose contexts have ended", func() { p.release(c) }, all[len(all)/2:]...)
		},
	},
	{
		name:  "notify-tells-every-key",
		law:   tellLaw,
		needs: notifier,
		check: func(p *probe) {
			var all []listener
			for i := range racers {
				all = append(all, p.listen(p.key(fmt.Sprint(i))))
			}
			for _, l := range all {
				c, _ := p.take(l.key, lasting)
				p.mustBeTold("a release; other keys were listened to, too", func() { p.release(c) }, l)
			}
		},
	},
	{
		name:  "notify-tells-shorter-lock",
		law:   earlierLaw,
		needs: notifier,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			l := p.listen(c.Key)
			c.Expiry = lasting / 2
			p.mustBeTold("its holder had locked again for a shorter time", func() { p.mustLock(c, "to the token that holds it, for a shorter time") }, l)
		},
	},
	{
		name:  "notify-tells-shorter-extend",
		law:   earlierLaw,
		needs: notifier,
		check: func(p *probe) {
			if !probeCapabilities(p.ctx, p.handler)[extender] {
				p.leave("the handler has no Extender")
			}
			c, _ := p.take(p.key("k"), lasting)
			l := p.listen(c.Key)
			c.Expiry = lasting / 2
			p.mustBeTold("its holder had extended it for a shorter time", func() {
				if !p.extend(c).held {
					p.fail("Extend of %q was refused to its holder.", c.Key)
				}
			}, l)
		},
	},
	{
		name:  "notify-quiet-release",
		law:   "Quiet asks a [Notifier] not to wake anybody for the release of this claim",
		needs: notifier,
		check: func(p *probe) {
			c, _ := p.take(p.key("k"), lasting)
			l := p.listen(c.Key)
			c.Quiet = true
			p.release(c)
			if p.told(l, shortly) { // there may be more than needed: nothing is broken
				p.note("the store wakes those who wait for a quiet release, too")
			}
			next := p.claim(c.Key, lasting)
			p.mustLock(next, "after its holder had released it quietly")
			p.mustBeTold("a release that was not quiet, after one that was", func() { p.release(next) }, l)
		},
	},
	{
		name:  "notify-leaves-no-gap",
		law:   "Notify returns when it is listening: whatever frees key from then on is told",
		needs: notifier,
		check: func(p *probe) {
			for round := range 25 {
				// A key that nobody has listened to, and one whose last listener has just gone: what his end brings about
				// may come in between.
				for key, pause := range map[string]time.Duration{
					p.key(fmt.Sprint(round)): 0,
					p.key("again"):           time.Duration(round%5) * time.Millisecond,
				} {
					c, _ := p.take(key, lasting)
					l := p.listen(key)
					p.sleep(pause)
					p.release(c)
					if !p.told(l, callTimeout) {
						p.fail("nothing was told to one who listens to %q within %v of a release that came %v after Notify had returned, in round %d.",
							key, callTimeout, pause, round+1)
					}
					l.stop()
				}
			}
		},
	},
	{
		name:  "notify-waits-for-no-reader",
		law:   "Values may be merged, and there may be more of them than needed",
		needs: notifier,
		check: func(p *probe) {
			l := p.listen(p.key("k"))
			for range 5 {
				c, _ := p.take(l.key, lasting)
				if a := p.release(c); a.answered.Sub(a.sent) > callTimeout/2 {
					p.fail("Release of %q took %v while somebody listened who did not read.", l.key, a.answered.Sub(a.sent))
				}
			}
			if !p.told(l, callTimeout) {
				p.fail("nothing was told to one who listens to %q, of five releases.", l.key)
			}
			c, _ := p.take(l.key, lasting)
			p.mustBeTold("a release, after others of which a listener had not read", func() { p.release(c) }, l)
		},
	},
	{
		name:  "notify-ends-with-its-context",
		law:   "Notify listens until ctx ends, and then leaves nothing behind.",
		needs: notifier,
		check: func(p *probe) {
			l := p.listen(p.key("k"))
			l.stop()
			for end := time.Now().Add(callTimeout); p.tellsStill(l); p.sleep(shortly) {
				if time.Now().After(end) {
					p.fail("a release of %q was told to one whose context had ended %v before.", l.key, callTimeout)
				}
			}
			for range 100 { // more than there is room for, if it is not given back
				p.listen(l.key).stop()
			}
			last := p.listen(l.key)
			c, _ := p.take(l.key, lasting)
			p.mustBeTold("a release; a hundred had listened before", func() { p.release(c) }, last)
		},
	},
	{
		name:  "notify-with-ended-context",
		law:   contextLaw,
		needs: notifier,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				_, err := p.notify(ctx, p.key(name))
				p.mustMatch(ctx, "Notify", err)
			})
		},
	},
}
