package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
)

// The contexts are context.Background, as in the peers' READMEs and benchmarks: none of them has to watch it.

// acquireRelease is one goroutine that acquires and releases one lock, over and over. Its allocations have a row of their own.
var acquireRelease = work{"AcquireRelease", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	return forEach(names, l, tb, func(c contender) measure {
		return func() (sample, error) {
			return benchmark(func(b *testing.B) error {
				for b.Loop() {
					if err := c.try(context.Background(), oneKey, nil); err != nil {
						return err
					}
				}
				return nil
			})
		}
	})
}}

// acquireRelease64 is the same by 64 goroutines, with a lock each.
var acquireRelease64 = work{"AcquireRelease64", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	return forEach(names, l, tb, func(c contender) measure {
		return func() (sample, error) {
			return benchmark(func(b *testing.B) error {
				var all errgroup.Group
				var begun atomic.Int64
				for i := range 64 {
					key := fmt.Sprint("customer-", i)
					all.Go(func() error {
						for begun.Add(1) <= int64(b.N) {
							if err := c.try(context.Background(), key, nil); err != nil {
								return err
							}
						}
						return nil
					})
				}
				return all.Wait()
			})
		}
	})
}}

// backgroundRelease is one goroutine that acquires one lock after the other and does not wait for the releases. raw waits.
var backgroundRelease = work{"BackgroundRelease", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	return forEach([]string{rawName, lokiName}, l, tb, func(c contender) measure {
		return func() (sample, error) {
			return benchmark(func(b *testing.B) error {
				for i := 0; b.Loop(); i++ {
					key := fmt.Sprint("customer-", i%64)
					var err error
					if own, ok := c.(*lokiContender); ok {
						err = own.execute(context.Background(), nil, loki.WithResource(key), loki.WithBackgroundRelease())
					} else {
						err = c.try(context.Background(), key, nil)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	})
}}

// busyElsewhere is an attempt to acquire a lock that another process holds.
var busyElsewhere = work{"BusyElsewhere", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	holder, err := startWorker(tb, worker{Addr: l.addr, Expiry: holdExpiry})
	if err != nil {
		return nil, err
	}
	measures := make(map[string]measure)
	for _, name := range names {
		key := keyOf(name)
		if err := holder.do(order{"open", name, ""}); err != nil {
			return nil, err
		}
		if err := holder.do(order{"hold", name, key}); err != nil {
			return nil, err
		}
		c, err := open(tb, name, l.addr, holdExpiry)
		if err != nil {
			return nil, err
		}
		measures[name] = busy(c, key)
	}
	return measures, nil
}}

// busyHere is an attempt to acquire a lock that the same process holds, by the same client.
var busyHere = work{"BusyHere", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	measures := make(map[string]measure)
	for _, name := range names {
		c, err := open(tb, name, l.addr, holdExpiry)
		if err != nil {
			return nil, err
		}
		key := keyOf(name)
		release, err := hold(c, key)
		if err != nil {
			return nil, err
		}
		tb.Cleanup(func() { _, _ = release() })
		measures[name] = busy(c, key)
	}
	return measures, nil
}}

func busy(c contender, key string) measure {
	return func() (sample, error) {
		return benchmark(func(b *testing.B) error {
			for b.Loop() {
				if err := c.try(context.Background(), key, nil); !errors.Is(err, errBusy) {
					return fmt.Errorf("%q is not busy: %w", key, err)
				}
			}
			return nil
		})
	}
}

// turns is 16 goroutines of one process that all want one lock.
var turns = work{"Turns16", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	return forEach(waiting, l, tb, func(c contender) measure {
		return func() (sample, error) { return takeTurns(c, l.turnsFor) }
	})
}}

// mostOfOne is how many of the turns the luckiest of the goroutines had, in percent: 100/16 is fair, 100 is one that gets
// the lock back again and again while the others wait.
const mostOfOne = "%-of-one"

// stuck is how many waiters nobody woke, although the lock was free.
const stuck = "stuck"

// takeTurns counts the turns of a fixed time. With a fixed number of them the last ones would wait for a poll each while the
// lock is free, which is no contention.
func takeTurns(c contender, d time.Duration) (sample, error) {
	const callers = 16
	ctx, cancel := context.WithTimeout(context.Background(), d+waitsAtMost)
	defer cancel()
	var all errgroup.Group
	var counts [callers]int
	var left atomic.Int64
	start := time.Now()
	end := start.Add(d)
	first := make(chan time.Duration, callers) // of a slice too short for a turn
	for i := range callers {
		all.Go(func() error {
			for time.Now().Before(end) {
				err := c.wait(ctx, oneKey, func() {
					if now := time.Now(); now.Before(end) {
						counts[i]++
					} else {
						first <- now.Sub(start)
					}
				})
				switch {
				case err != nil && ctx.Err() != nil:
					left.Add(1)
				case err != nil:
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return sample{}, err
	}
	sum, most := 0, 0
	for _, n := range counts {
		sum, most = sum+n, max(most, n)
	}
	if sum == 0 {
		sum, most, d = 1, 1, <-first
	}
	return sample{n: sum, values: map[string]float64{
		nsPerOp:   float64(d.Nanoseconds()) / float64(sum),
		mostOfOne: 100 * float64(most) / float64(sum),
		stuck:     float64(left.Load()),
	}}, nil
}

// forEach opens the contenders and makes a measure of each.
func forEach(names []string, l *lab, tb *rig.Rig, m func(contender) measure) (map[string]measure, error) {
	measures := make(map[string]measure)
	for _, name := range names {
		c, err := open(tb, name, l.addr, expiry)
		if err != nil {
			return nil, err
		}
		measures[name] = m(c)
	}
	return measures, nil
}
