package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lokilock/loki/benchmarks/internal/rig"
)

// The units of what is measured, as the Go benchmark format has them.
const (
	nsPerOp     = "ns/op"
	allocsPerOp = "allocs/op"
	p50         = "p50-ns"
	p99         = "p99-ns"
)

// sample is what one slice of work has shown.
type sample struct {
	n         int // how many operations
	values    map[string]float64
	latencies []time.Duration // of each operation, where the work looks at each
}

// measure does one slice of work.
type measure func() (sample, error)

// samples are those of every contender, one of each for each round.
type samples map[string][]sample

// work is one kind of work.
type work struct {
	name    string                                           // of its benchmark
	rounds  func(settings) int                               // how often each contender has its slice
	prepare func(*lab, *rig.Rig) (map[string]measure, error) // what it opens is closed with the Rig
}

// lab is where work is done.
type lab struct {
	settings
	addr string // of the redis-server
	log  io.Writer
}

// measure does every round of a kind of work.
func (l *lab) measure(ctx context.Context, w work) (all samples, err error) {
	start := time.Now()
	err = rig.Run(func(tb *rig.Rig) error {
		measures, err := w.prepare(l, tb)
		if err != nil {
			return err
		}
		all, err = interleave(ctx, w.rounds(l.settings), measures)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	fmt.Fprintf(l.log, "%-20s %2d rounds, %v\n", w.name, w.rounds(l.settings), time.Since(start).Round(100*time.Millisecond))
	return all, nil
}

// interleave gives each measure one slice in every round, in random order. What disturbs the machine for some seconds
// disturbs all of them, and figures are compared within a round.
func interleave(ctx context.Context, rounds int, measures map[string]measure) (samples, error) {
	var order []string
	for name := range measures {
		order = append(order, name)
	}
	slices.Sort(order)
	all := make(samples)
	for range rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, name := range order {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s, err := measures[name]()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all[name] = append(all[name], s)
		}
	}
	return all, nil
}

// benchmark runs f as `go test -bench` does: for the time of -benchtime, with its allocations counted, which are those of the
// whole process.
func benchmark(f func(*testing.B) error) (sample, error) {
	var failed error
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		if failed = f(b); failed != nil {
			b.FailNow()
		}
	})
	if failed != nil {
		return sample{}, failed
	}
	return sample{n: r.N, values: map[string]float64{
		nsPerOp:     float64(r.T.Nanoseconds()) / float64(r.N),
		"B/op":      float64(r.AllocedBytesPerOp()),
		allocsPerOp: float64(r.AllocsPerOp()),
	}}, nil
}

// latency returns the sample of operations that were measured one by one.
func latency(each []time.Duration) sample {
	var sum time.Duration
	for _, d := range each {
		sum += d
	}
	return sample{n: len(each), latencies: each, values: map[string]float64{
		nsPerOp: float64(sum) / float64(len(each)),
		p50:     float64(percentile(each, 50)),
		p99:     float64(percentile(each, 99)),
	}}
}

// percentile returns the smallest latency that p percent do not exceed.
func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)*p+99)/100-1]
}
