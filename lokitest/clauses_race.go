package lokitest

import (
	"fmt"
	"sync/atomic"

	"github.com/lokilock/loki"
)

const (
	raceLaw    = "Both methods are called by many goroutines at once, also for the same key."
	racers     = 12
	raceRounds = 8
)

// race starts n goroutines as nearly at once as can be had.
func (p *probe) race(n int, run func(i int)) {
	start := make(chan struct{})
	var fns []func()
	for i := range n {
		fns = append(fns, func() {
			<-start
			run(i)
		})
	}
	p.together(append(fns, func() { close(start) })...)
}

var raceClauses = []clause{
	{
		name: "one-winner",
		law:  raceLaw,
		check: func(p *probe) {
			for round := range raceRounds {
				key := p.key(fmt.Sprint(round))
				var winners atomic.Int32
				p.race(racers, func(int) {
					if p.lock(p.claim(key, lasting)).held {
						winners.Add(1)
					}
				})
				if n := winners.Load(); n != 1 {
					p.fail("%d tokens asked at once for %q, which was free, and %d of them got it.", racers, key, n)
				}
			}
		},
	},
	{
		name: "again-at-once",
		law:  "Lock of a claim that already holds succeeds and starts its expiry anew, so a repeated call is safe.",
		check: func(p *probe) {
			for round := range raceRounds {
				c := p.claim(p.key(fmt.Sprint(round)), lasting)
				p.race(racers/2, func(int) { p.mustLock(c, "to a call of the same claim that came at the same time as others of it") })
				p.release(c)
				p.mustBeFree(c.Key, "after its holder, which had locked several times at once, had released it")
			}
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
			p.race(len(claims), func(i int) { p.mustLock(claims[i], "although nobody held it, while other keys were being locked") })
			p.race(len(claims), func(i int) { p.mustBeHeld(claims[i].Key, "while other keys were being locked") })
			p.race(len(claims), func(i int) { p.release(claims[i]) })
			p.race(len(claims), func(i int) { p.mustBeFree(claims[i].Key, "after it had been released while others were") })
		},
	},
}
