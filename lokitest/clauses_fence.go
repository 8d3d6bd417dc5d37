package lokitest

import (
	"time"

	"github.com/lokilock/loki"
)

const (
	fenceLaw      = "for one key larger than every fence issued before, and at least [Claim.Fence]."
	againFenceLaw = "A claim that is granted again while it holds keeps its fence, unless the floor has risen above it."
)

// fence has c granted. A store that issues none has nothing more to show.
func (p *probe) fence(c loki.Claim, when string) int64 {
	g := p.mustGrant(c, when)
	if g.Fence == 0 {
		p.leave("the store issues no fences")
	}
	return g.Fence
}

func (p *probe) mustGrow(before, after int64, when string) {
	if after <= before {
		p.fail("the fence %d was issued %s; it must be larger than %d, which was issued before.", after, when, before)
	}
}

// nextFence is the fence of a new claim on key, which must be free, and remains so.
func (p *probe) nextFence(key string, floor int64) int64 {
	c := p.claim(key, lasting)
	c.Fence = floor
	fence := p.fence(c, "although nobody held it")
	p.release(c)
	return fence
}

var fenceClauses = []clause{
	{
		name:  "fence-always-or-never",
		law:   "Zero where the store issues none.",
		needs: granter,
		check: func(p *probe) {
			var fences []int64
			for _, key := range []string{p.key("k"), p.key("k"), p.key("another")} {
				c := p.claim(key, lasting)
				c.Fence = int64(len(fences)) // with a floor and without
				fences = append(fences,
					p.mustGrant(c, "although nobody held it").Fence,
					p.mustGrant(c, "to the token that holds it").Fence)
				p.release(c)
			}
			for _, fence := range fences {
				if (fence > 0) != (fences[0] > 0) || fence < 0 {
					p.fail("fences are zero if the store issues none, else positive; claims that were granted had %d.", fences)
				}
			}
		},
	},
	{
		name:  "fence-grows-over-release",
		law:   fenceLaw,
		needs: granter,
		check: func(p *probe) {
			first := p.nextFence(p.key("k"), 0)
			second := p.nextFence(p.key("k"), 0)
			p.mustGrow(first, second, "after the first claim had been released")

			c, _ := p.take(p.key("k"), lasting) // its fence is not told, but counts
			third := p.fence(c, "to the token to which Lock had granted it")
			p.mustGrow(second, third, "to a claim that Lock had granted")
			fourth := p.fence(p.superseding(c.Key, c.Token), "although only the token that the claim supersedes held it")
			p.mustGrow(third, fourth, "to a claim that superseded another")
		},
	},
	{
		name:  "fence-grows-over-expiry",
		law:   fenceLaw,
		needs: granter,
		check: func(p *probe) {
			const expiry = 40 * time.Millisecond
			c := p.claim(p.key("k"), expiry)
			before := p.fence(c, "although nobody held it")
			next := p.claim(c.Key, lasting)
			p.mustGetFree(next, time.Now().Add(expiry+time.Millisecond))
			p.mustGrow(before, p.fence(next, "to the token that holds it"), "after the first claim had expired")
		},
	},
	{
		name:  "fence-has-a-floor",
		law:   "the fence issued for this claim is at least this.",
		needs: granter,
		check: func(p *probe) {
			floor := p.nextFence(p.key("k"), 0) + 1e9
			if got := p.nextFence(p.key("k"), floor); got < floor {
				p.fail("the fence %d was issued for a claim whose floor is %d.", got, floor)
			}
			if got := p.nextFence(p.key("new"), floor); got < floor {
				p.fail("the fence %d was issued for a claim whose floor is %d, on a key that had none before.", got, floor)
			}
		},
	},
	{
		name:  "fence-stays-above-floor",
		law:   fenceLaw,
		needs: granter,
		check: func(p *probe) {
			floor := p.nextFence(p.key("k"), 0) + 1e9
			raised := p.nextFence(p.key("k"), floor)
			next := p.nextFence(p.key("k"), 0)
			p.mustGrow(raised, next, "after a claim with a high floor")
			p.mustGrow(next, p.nextFence(p.key("k"), floor-1), "after a claim with a high floor, to one with a lower floor")
		},
	},
	{
		name:  "fence-is-the-same-again",
		law:   againFenceLaw,
		needs: granter,
		check: func(p *probe) {
			c := p.claim(p.key("k"), lasting)
			first := p.fence(c, "although nobody held it")
			p.lock(p.claim(c.Key, lasting)) // refused: no reason for a new fence
			for c.Fence = range 2 {         // without a floor, and with one below
				if again := p.fence(c, "to the token that holds it"); again != first {
					p.fail("the fence %d was issued when a claim was granted again that had the fence %d.", again, first)
				}
			}
		},
	},
	{
		name:  "fence-rises-with-the-floor",
		law:   againFenceLaw,
		needs: granter,
		check: func(p *probe) {
			c := p.claim(p.key("k"), lasting)
			c.Fence = p.fence(c, "although nobody held it") + 1e9
			raised := p.fence(c, "to the token that holds it")
			if raised < c.Fence {
				p.fail("the fence %d was issued when a claim was granted again whose floor had become %d.", raised, c.Fence)
			}
			p.release(c)
			p.mustGrow(raised, p.nextFence(c.Key, 0), "after a claim whose floor had risen while it held")
		},
	},
}
