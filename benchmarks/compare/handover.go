package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lokilock/loki/benchmarks/internal/rig"
)

// handOver is how long it takes from the moment at which this process begins to release a lock until a waiter in another
// process runs under it.
var handOver = work{"HandOver", func(s settings) int { return s.handOverRounds }, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	waiter, err := startWorker(tb, worker{Addr: l.addr, Expiry: expiry})
	if err != nil {
		return nil, err
	}
	measures := make(map[string]measure)
	for _, name := range waiting {
		c, err := open(tb, name, l.addr, expiry)
		if err != nil {
			return nil, err
		}
		if err := waiter.do(order{"open", name, ""}); err != nil {
			return nil, err
		}
		measures[name] = func() (sample, error) { return handOvers(c, waiter, name, l.handOvers) }
	}
	return measures, nil
}}

func handOvers(c contender, waiter *workerProcess, name string, n int) (sample, error) {
	var each []time.Duration
	for range n {
		took, err := handOverOnce(c, waiter, name)
		switch {
		case errors.Is(err, errStuck):
		case err != nil:
			return sample{}, err
		default:
			each = append(each, took)
		}
	}
	s := sample{n: n, values: make(map[string]float64)}
	if len(each) > 0 {
		s = latency(each)
	}
	s.values[stuck] = float64(n - len(each))
	return s, nil
}

var errStuck = fmt.Errorf("a waiter was not woken within %v after the lock was released", waitsAtMost)

// A holder goes on for this long after the waiter has begun to wait, and up to once more as long as the slowest poll but
// redsync's: else a poll would always come at the same time after the release.
const (
	leastHold = 20 * time.Millisecond
	moreHold  = redislockBackoff
)

func handOverOnce(c contender, waiter *workerProcess, name string) (time.Duration, error) {
	key := keyOf(name)
	release, err := hold(c, key)
	if err != nil {
		return 0, err
	}
	if err := waiter.order(order{"wait", name, key}); err != nil {
		return 0, err
	}
	time.Sleep(leastHold + rand.N(moreHold))
	released, err := release()
	if err != nil {
		return 0, err
	}
	a, err := waiter.answer()
	switch {
	case err != nil:
		return 0, err
	case a.Granted.IsZero():
		return 0, errStuck
	}
	// Processes of one machine share its clock, but not Go's monotonic reading of it, which the JSON has not.
	took := a.Granted.Sub(released)
	if took < 0 {
		return 0, fmt.Errorf("the waiter had the lock %v before it was released, or the clock was set", -took)
	}
	return took, nil
}
