package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/redishandler"
)

// primaryTimeout is the library's default: the wait of the first call is measured against it.
const primaryTimeout = loki.DefaultPrimaryTimeout

// first is how long it takes until the fn of the first call runs, from the call on.
const first = "first-ns"

// blackHole is what a primary that answers nothing, and refuses nothing, costs the callers: the first of them, and those
// that follow. The secondary is PostgreSQL. What a call costs with that alone is measured beside it.
var blackHole = work{"BlackHole", func(s settings) int { return s.blackHoleRounds }, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	secondary, err := startPostgres(tb)
	if err != nil {
		return nil, err
	}
	alone, err := openLocker(tb, loki.Config{ServiceKey: "sql-alone", Primary: secondary, PrimaryTimeout: patience})
	if err != nil {
		return nil, err
	}
	if _, err := callOneByOne(alone, l.blackHoleCalls); err != nil { // opens the connections
		return nil, err
	}
	round := 0
	return map[string]measure{
		secondaryOnly: func() (sample, error) {
			toFn, err := timeToFn(alone)
			if err != nil {
				return sample{}, err
			}
			s, err := callOneByOne(alone, l.blackHoleCalls)
			if err != nil {
				return sample{}, err
			}
			s.values[first] = float64(toFn)
			return s, nil
		},
		lokiName: func() (s sample, err error) {
			err = rig.Run(func(tb *rig.Rig) error {
				round++
				s, err = loseThePrimary(tb, l, secondary, fmt.Sprint("black-hole-", round))
				return err
			})
			return s, err
		},
	}, nil
}}

// loseThePrimary has a Locker of its own: what another has learnt of the outage would spare it the first call's wait. It has a
// key of its own, too, since what was sent into the black hole arrives when that ends.
func loseThePrimary(tb *rig.Rig, l *lab, secondary loki.LockHandler, key string) (sample, error) {
	proxy := faultproxy.Start(tb, l.addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	locker, err := openLocker(tb, loki.Config{
		ServiceKey: key, Primary: redishandler.New(client), PrimaryTimeout: primaryTimeout, Secondary: secondary, SecondaryTimeout: patience,
	})
	if err != nil {
		return sample{}, err
	}
	tb.Cleanup(proxy.PassThrough) // before Close, which waits for the requests in the black hole
	if _, err := callOneByOne(locker, warmCalls); err != nil {
		return sample{}, err
	}
	proxy.BlackHole()
	toFn, err := timeToFn(locker)
	if err != nil {
		return sample{}, err
	}
	s, err := callOneByOne(locker, l.blackHoleCalls)
	if err != nil {
		return sample{}, err
	}
	s.values[first] = float64(toFn)
	return s, nil
}

const warmCalls = 20

func timeToFn(l *loki.Locker) (took time.Duration, err error) {
	start := time.Now()
	err = l.ExecuteWithinLock(context.Background(), expiry, func(context.Context) error {
		took = time.Since(start)
		return nil
	})
	return took, err
}

func callOneByOne(l *loki.Locker, n int) (sample, error) {
	each := make([]time.Duration, n)
	for i := range each {
		start := time.Now()
		if err := l.ExecuteWithinLock(context.Background(), expiry, doNothing); err != nil {
			return sample{}, err
		}
		each[i] = time.Since(start)
	}
	return latency(each), nil
}
