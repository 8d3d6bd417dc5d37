package lokitest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

// A race is repeated on many keys. A store behind a network shows two steps on a few of them, since another call fits between
// the steps. Where only a few instructions are between them, thousands of keys show it, which take a store in memory no longer.
const (
	racers     = 12
	rivals     = 4 // where two calls race, each made twice: a Locker, too, repeats a call that is not answered
	fewestKeys = 8
	mostKeys   = 200                   // at a time
	mostTimes  = 4                     // for a testing/synctest bubble, where time may pass much slower than outside
	raceFor    = 60 * time.Millisecond // in all, of the races alone

	// briefly is the expiry of a claim that is to be over soon, and to be granted by a slow store of several servers.
	briefly = 150 * time.Millisecond
)

// onManyKeys makes an experiment that leaves its keys free: on a few keys first, and then on as many at a time as the store is
// fast. The experiment returns how long its race took.
func (p *probe) onManyKeys(experiment func(keys int) time.Duration) {
	keys, left := fewestKeys, raceFor
	for times := 0; times < mostTimes && keys >= fewestKeys; times++ {
		took := experiment(keys)
		left -= took
		if took <= 0 {
			return // the clock stands still: a store in memory in a testing/synctest bubble
		}
		keys = int(min(mostKeys, int64(keys)*int64(left)/int64(took)))
	}
}

// race sends n goroutines along keys, in random order. On a few keys they begin each one together. On many they go side by side:
// each one calls start before the call that is to race, which waits on its processor for the others, since to be woken takes
// longer than a store in memory takes for a call. It does not wait for long: one of them may be in a call still, and no time
// passes in a testing/synctest bubble where somebody is busy.
func (p *probe) race(n, keys int, run func(i, key int, start func())) {
	if keys <= fewestKeys {
		for key := range keys {
			p.sideBySide(n, 1, func(i, _ int, start func()) { run(i, key, start) })
		}
		return
	}
	p.sideBySide(n, keys, run)
}

func (p *probe) sideBySide(n, keys int, run func(i, key int, start func())) {
	const patience = 100
	there := make([]atomic.Int32, keys)
	var fns []func()
	for _, i := range rand.Perm(n) {
		fns = append(fns, func() {
			for key := range keys {
				run(i, key, func() {
					there[key].Add(1)
					for range patience {
						if int(there[key].Load()) == n {
							return
						}
						runtime.Gosched()
					}
				})
			}
		})
	}
	p.together(fns...)
}

// atOnce is a race for one key, or for none.
func (p *probe) atOnce(n int, run func(i int)) {
	p.race(n, 1, func(i, _ int, start func()) {
		start()
		run(i)
	})
}

// each does something for all keys at once.
func (p *probe) each(keys int, do func(key int)) {
	var fns []func()
	for key := range keys {
		fns = append(fns, func() { do(key) })
	}
	p.together(fns...)
}

// takeEach has that many keys, named alike, granted to new claims, and returns by when they are over.
func (p *probe) takeEach(name string, keys int, expiry time.Duration) ([]loki.Claim, time.Time) {
	claims, answers := make([]loki.Claim, keys), make([]answer, keys)
	p.each(keys, func(key int) { claims[key], answers[key] = p.take(p.key(fmt.Sprint(name, key)), expiry) })
	over := time.Now()
	for _, a := range answers {
		if end := expiredBy(a, expiry); end.After(over) {
			over = end
		}
	}
	return claims, over
}

// after makes call when start returns.
func after(start func(), call func(context.Context, *answer)) func(context.Context, *answer) {
	return func(ctx context.Context, a *answer) {
		start()
		call(ctx, a)
	}
}

// winners has racers ask at once for each of the keys, with claims that mint makes, and releases what they got. It returns the
// smallest and the largest number of them that got one key, and how long that took.
func (p *probe) winners(keys int, mint func(key int) loki.Claim) (least, most int, took time.Duration) {
	claims, answers := make([][racers]loki.Claim, keys), make([][racers]answer, keys)
	for key := range keys {
		for i := range racers {
			claims[key][i] = mint(key)
		}
	}
	start := time.Now()
	p.race(racers, keys, func(i, key int, start func()) {
		answers[key][i] = p.ask(claims[key][i], after(start, p.byLock(claims[key][i])))
		p.mustAnswer("Lock", claims[key][i].Key, answers[key][i].err)
	})
	end := time.Now()
	if !certainlyBefore(end, start.Add(lasting)) {
		p.leave("the store was so slow that one claim may have been over when the next one was granted")
	}
	won := make([]int, keys)
	p.each(keys, func(key int) {
		contended := false
		for i, a := range answers[key] {
			contended = contended || a.grant.Contended
			if a.held {
				won[key]++
				p.release(claims[key][i])
			}
		}
		if contended && won[key] == 0 {
			won[key] = 1 // of nobody: the store says that none has won
		}
	})
	return slices.Min(won), slices.Max(won), end.Sub(start)
}

// againstTakeOver lets call, about the claim that holds a key, race with the Lock of the claim that takes the key over: one
// that supersedes it, on many keys, and then one that asks when the expiry passes. call reports whether it gave the claim that
// it is about a new expiry.
func (p *probe) againstTakeOver(name string, call func(old loki.Claim, start func()) (renewed bool)) {
	p.onManyKeys(func(keys int) time.Duration {
		old, _ := p.takeEach("", keys, lasting)
		next := make([]loki.Claim, keys)
		for key := range next {
			next[key] = p.superseding(old[key].Key, old[key].Token)
		}
		begin := time.Now()
		p.race(rivals, keys, func(i, key int, start func()) {
			if i%2 == 0 {
				call(old[key], start)
				return
			}
			a := p.ask(next[key], after(start, p.byLock(next[key])))
			p.mustAnswer("Lock", next[key].Key, a.err)
			if !a.held {
				p.fail("Lock of %q was refused although the claim supersedes its holder, for whom a %s came at the same time.", next[key].Key, name)
			}
		})
		took := time.Since(begin)
		p.each(keys, func(key int) {
			p.mustStand(next[key], begin, fmt.Sprintf("it superseded one for which a %s came at the same time", name))
			p.isOver(old[key])
		})
		return took
	})

	// Moments around the end of the expiry, as far as it is known, for two steps with some milliseconds between them.
	const step, moments, past = 500 * time.Microsecond, 8, 2
	p.each(moments, func(i int) {
		old, a := p.take(p.key(fmt.Sprint("expiring-", i)), briefly)
		next, begin := p.claim(old.Key, lasting), a.sent.Add(briefly-(moments-past)*step)
		var renewed, taken atomic.Bool
		p.together(
			func() {
				again := old
				again.Expiry = lasting
				p.sleepUntil(begin.Add(time.Duration(i) * step))
				renewed.Store(call(again, func() {}))
			},
			func() {
				for p.sleepUntil(begin); !renewed.Load() && time.Since(begin) < callTimeout; {
					a := p.lock(next)
					if taken.Store(a.held); a.held {
						return
					}
					p.sleep(max(step, a.answered.Sub(a.sent))) // a slow store is not to be asked all the time
				}
			},
		)
		if taken.Load() {
			p.mustStand(next, begin, fmt.Sprintf("it was granted when the one before it had expired, for which a %s came at about that time", name))
			p.isOver(old)
			return
		}
		p.release(old)
	})
}

// mustStand demands that c, granted for as long as an experiment lasts and not before since, holds its key, and releases it.
// how says how it was granted.
func (p *probe) mustStand(c loki.Claim, since time.Time, how string) {
	end := since.Add(lasting)
	rival := p.claim(c.Key, lasting)
	a := p.lock(rival)
	if a.held && certainlyBefore(a.answered, end) {
		p.fail("Lock of %q was granted to a second token, and the claim that held it is gone: %s.", c.Key, how)
	}
	if a.held {
		p.release(rival)
		return
	}
	c.Supersedes = "" // or it would replace once more whoever has come back
	if a := p.lock(c); !a.held && certainlyBefore(a.answered, end) {
		p.fail("Lock of %q was refused to its holder, and another claim has its place: %s.", c.Key, how)
	}
	p.release(c)
}
