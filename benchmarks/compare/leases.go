package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/redishandler"
)

// The units of many leases.
const (
	goroutines = "goroutines"   // of the process that holds them, more than before the first
	heapEach   = "heap-B/lease" // with the stacks of goroutines
	cpu        = "%-cpu"        // of one core, by the process that holds them, while it does
	oldest     = "%-of-expiry"  // the age of the oldest record that was seen, of its expiry; an on-time renewal keeps it near 33
	lost       = "lost"
)

// leases is that many locks from Acquire, held and renewed by one process.
func leases(n int) work {
	return work{fmt.Sprintf("Leases/n=%d", n), func(settings) int { return 1 }, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
		return map[string]measure{lokiName: func() (s sample, err error) {
			err = rig.Run(func(tb *rig.Rig) error {
				s, err = l.watchLeases(tb, n)
				return err
			})
			return s, err
		}}, nil
	}}
}

// leaseStats is what the process says that holds leases.
type leaseStats struct {
	Goroutines int
	Heap       uint64
	CPU        time.Duration
	Lost       int
}

// watchLeases has a worker hold n leases for two renewals of each, and looks at the records in the store meanwhile: what the
// library says of itself is not asked. A process of its own has no other work in its heap, its goroutines and its CPU time.
func (l *lab) watchLeases(tb *rig.Rig, n int) (sample, error) {
	rdb := dial(l.addr)
	tb.Cleanup(func() { _ = rdb.Close() })
	if err := rdb.FlushDB(context.Background()).Err(); err != nil { // what others have left would be counted
		return sample{}, err
	}
	w, err := startWorker(tb, worker{Addr: l.addr, Expiry: l.leaseExpiry, Leases: n, Timeout: l.leaseTimeout})
	if err != nil {
		return sample{}, err
	}
	before, err := w.stats()
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	var age time.Duration
	for time.Since(start) < l.leaseExpiry*2/3+l.leaseExpiry/20 {
		time.Sleep(l.leaseExpiry / 30) // to look at 100,000 records is work for the server, too
		now, seen, err := oldestRecord(rdb, l.leaseExpiry)
		if err != nil {
			return sample{}, err
		}
		if seen < n {
			fmt.Fprintf(l.log, "%d of %d records are in the store\n", seen, n)
		}
		age = max(age, now)
	}
	if err := w.order(order{Do: "look"}); err != nil {
		return sample{}, err
	}
	held := time.Since(start)
	after, err := w.stats()
	if err != nil {
		return sample{}, err
	}
	return sample{n: n, values: map[string]float64{
		goroutines: float64(max(before.Goroutines, after.Goroutines)),
		heapEach:   float64(before.Heap) / float64(n),
		cpu:        100 * float64(after.CPU-before.CPU) / float64(held),
		oldest:     100 * float64(age) / float64(l.leaseExpiry),
		lost:       float64(after.Lost),
	}}, nil
}

// stats reads what the worker says next.
func (p *workerProcess) stats() (s leaseStats, err error) {
	return s, p.out.Decode(&s)
}

// oldestRecord returns how long ago that record was confirmed which will expire first, and how many there are.
func oldestRecord(rdb *redis.Client, expiry time.Duration) (age time.Duration, seen int, err error) {
	ctx := context.Background()
	for cursor := uint64(0); ; {
		var keys []string
		keys, cursor, err = rdb.Scan(ctx, cursor, "loki:*", 1000).Result()
		if err != nil {
			return 0, 0, err
		}
		var left []*redis.DurationCmd
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				if !strings.HasSuffix(key, ":fence") {
					left = append(left, p.PTTL(ctx, key))
				}
			}
			return nil
		})
		if err != nil {
			return 0, 0, err
		}
		for _, cmd := range left {
			age = max(age, expiry-cmd.Val())
		}
		if seen += len(left); cursor == 0 {
			return age, seen, nil
		}
	}
}

// holdLeases is the worker. It says that it is ready, then what its leases take, and at the end once more.
func holdLeases(w worker, orders *json.Decoder, out *json.Encoder) (err error) {
	client := redis.NewClient(&redis.Options{Addr: w.Addr, ContextTimeoutEnabled: true})
	defer func() { err = errors.Join(err, client.Close()) }()
	locker, err := loki.New(loki.Config{ServiceKey: "leases", Primary: redishandler.New(client), PrimaryTimeout: w.Timeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close(context.Background())) }() // releases what is held
	const callers = 64
	empty := usage()
	held := make([]*loki.Lease, w.Leases)
	var all errgroup.Group
	var begun atomic.Int64
	for range callers {
		all.Go(func() error {
			for i := begun.Add(1) - 1; i < int64(w.Leases); i = begun.Add(1) - 1 {
				lease, err := locker.Acquire(context.Background(), w.Expiry, loki.WithResource(fmt.Sprint(i)))
				if err != nil {
					return err
				}
				held[i] = lease
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for {
		s := usage()
		s.Goroutines = max(0, s.Goroutines-empty.Goroutines)
		s.Heap -= min(empty.Heap, s.Heap)
		for _, lease := range held {
			if lease.Context().Err() != nil {
				s.Lost++
			}
		}
		if err := out.Encode(s); err != nil {
			return err
		}
		if err := orders.Decode(&order{}); err != nil {
			return nil // the input has ended
		}
	}
}

// usage returns what the process takes at this moment.
func usage() leaseStats {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var times syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &times) // it has no reason to fail
	return leaseStats{
		Goroutines: runtime.NumGoroutine(),
		Heap:       m.HeapAlloc + m.StackInuse,
		CPU:        time.Duration(times.Utime.Nano() + times.Stime.Nano()),
	}
}
