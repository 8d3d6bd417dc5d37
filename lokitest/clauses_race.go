package lokitest

import (
	"context"
	"fmt"
	"time"

	"github.com/lokilock/loki"
)

const (
	atomicLaw = "of many calls at once, each takes effect at one moment, as if they came one after the other."
	raceLaw   = "Both methods are called by many goroutines at once, also for the same key."
)

var raceClauses = []clause{
	{
		name: "one-winner",
		law:  atomicLaw,
		check: func(p *probe) {
			p.onManyKeys(func(keys int) time.Duration {
				least, most, took := p.winners(keys, func(key int) loki.Claim { return p.claim(p.key(fmt.Sprint(key)), lasting) })
				if least != 1 || most != 1 {
					p.fail("%d tokens asked at once for a key that was free; of one key %d of them got it, of another %d.", racers, least, most)
				}
				return took
			})
		},
	},
	{
		name: "one-winner-after-expiry",
		law:  atomicLaw,
		check: func(p *probe) {
			batch := 0
			p.onManyKeys(func(keys int) time.Duration {
				batch++ // what the store thinks to be held for a little longer must not be in the way of the next batch
				old, over := p.takeEach(fmt.Sprint("batch-", batch, "-"), keys, briefly)
				p.sleepUntil(over)
				_, most, took := p.winners(keys, func(key int) loki.Claim { return p.claim(old[key].Key, lasting) })
				if most > 1 {
					p.fail("%d tokens asked at once for a key whose holder had expired, and %d of them got it.", racers, most)
				}
				for _, c := range old {
					p.isOver(c)
				}
				return took
			})
		},
	},
	{
		name: "one-winner-superseding",
		law:  atomicLaw,
		check: func(p *probe) {
			p.onManyKeys(func(keys int) time.Duration {
				old, _ := p.takeEach("", keys, lasting)
				least, most, took := p.winners(keys, func(key int) loki.Claim { return p.superseding(old[key].Key, old[key].Token) })
				if least != 1 || most != 1 {
					p.fail("%d tokens asked at once for a key, with claims that supersede its holder; of one key %d of them got it, of another %d.", racers, least, most)
				}
				for _, c := range old {
					p.isOver(c)
				}
				return took
			})
		},
	},
	{
		name: "again-at-once",
		law:  "Lock of a claim that already holds succeeds and starts its expiry anew, so a repeated call is safe.",
		check: func(p *probe) {
			for round := range fewestKeys {
				c := p.claim(p.key(fmt.Sprint(round)), lasting)
				p.atOnce(racers/2, func(int) { p.mustLock(c, "to a call of the same claim that came at the same time as others of it") })
				p.release(c)
				p.mustBeFree(c.Key, "after its holder, which had locked several times at once, had released it")
			}
		},
	},
	{
		name: "again-against-takeover",
		law:  atomicLaw,
		check: func(p *probe) {
			p.againstTakeOver("repeated Lock", func(old loki.Claim, start func()) bool {
				a := p.ask(old, after(start, p.byLock(old)))
				p.mustAnswer("Lock", old.Key, a.err)
				return a.held
			})
		},
	},
	{
		name: "many-keys",
		law:  raceLaw,
		check: func(p *probe) {
			claims := make([]loki.Claim, 4*racers)
			for i := range claims {
				claims[i] = p.claim(p.key(fmt.Sprint(i)), lasting)
			}
			p.atOnce(len(claims), func(i int) { p.mustLock(claims[i], "although nobody held it, while other keys were being locked") })
			p.atOnce(len(claims), func(i int) { p.mustBeHeld(claims[i].Key, "while other keys were being locked") })
			p.atOnce(len(claims), func(i int) { p.release(claims[i]) })
			p.atOnce(len(claims), func(i int) { p.mustBeFree(claims[i].Key, "after it had been released while others were") })
		},
	},
}

var releaseRaceClauses = []clause{
	{
		name: "release-against-takeover",
		law:  atomicLaw,
		check: func(p *probe) {
			p.againstTakeOver("Release", func(old loki.Claim, start func()) bool {
				a := p.ask(old, after(start, p.byRelease(old)))
				p.mustAnswer("Release", old.Key, a.err)
				return false
			})
		},
	},
}

var extendRaceClauses = []clause{
	{
		name:  "extend-against-takeover",
		law:   atomicLaw,
		needs: extender,
		check: func(p *probe) {
			p.againstTakeOver("Extend", func(old loki.Claim, start func()) bool {
				a := p.ask(old, after(start, p.byExtend(old)))
				p.mustAnswer("Extend", old.Key, a.err)
				return a.held
			})
		},
	},
	{
		name:  "release-against-extend",
		law:   atomicLaw,
		needs: extender,
		check: func(p *probe) {
			p.onManyKeys(func(keys int) time.Duration {
				claims, _ := p.takeEach("", keys, lasting)
				calls := []struct {
					name string
					by   func(loki.Claim) func(context.Context, *answer)
				}{{"Release", p.byRelease}, {"Extend", p.byExtend}}
				begin := time.Now()
				p.race(rivals, keys, func(i, key int, start func()) {
					a := p.ask(claims[key], after(start, calls[i%2].by(claims[key])))
					p.mustAnswer(calls[i%2].name, claims[key].Key, a.err)
				})
				took := time.Since(begin)
				p.each(keys, func(key int) {
					p.mustBeFree(claims[key].Key, "after its holder had released it, with an Extend of the same claim on its way")
					p.isOver(claims[key])
				})
				return took
			})
		},
	},
}
