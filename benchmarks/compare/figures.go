package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// record is what a run has measured: the samples of each kind of work, by its name.
type record map[string]samples

// figure returns the median over the rounds of what a contender showed; of a percentile, that of all operations of all rounds.
func (r record) figure(work, who, unit string) (float64, bool) {
	var rounds []float64
	var each []time.Duration
	for _, s := range r[work][who] {
		if v, ok := s.values[unit]; ok {
			rounds = append(rounds, v)
		}
		each = append(each, s.latencies...)
	}
	switch {
	case len(each) > 0 && unit == p50:
		return float64(percentile(each, 50)), true
	case len(each) > 0 && unit == p99:
		return float64(percentile(each, 99)), true
	case len(rounds) == 0:
		return 0, false
	}
	return median(rounds), true
}

// ratio returns the median over the rounds of what a contender showed, divided by what base showed in the same round.
func (r record) ratio(work, who, base, unit string) (float64, bool) {
	var rounds []float64
	bases := r[work][base]
	for i, s := range r[work][who] {
		v, ok := s.values[unit]
		if ok && i < len(bases) && bases[i].values[unit] > 0 {
			rounds = append(rounds, v/bases[i].values[unit])
		}
	}
	if len(rounds) == 0 {
		return 0, false
	}
	return median(rounds), true
}

// sum returns how much of something there was in all rounds.
func (r record) sum(work, who, unit string) (sum float64) {
	for _, s := range r[work][who] {
		sum += s.values[unit]
	}
	return sum
}

func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// target is how fast this library is to be.
type target struct {
	text string
	// excess returns the figure divided by the target, so that 1 or less meets it; false if it was not measured.
	excess func(record) (float64, bool)
}

// atMost is a target for Loki's figure by itself.
func atMost(work, unit string, most float64, text string) target {
	return target{text, func(r record) (float64, bool) {
		v, ok := r.figure(work, lokiName, unit)
		return v / most, ok
	}}
}

// ratioAtMost is a target for Loki's figure against that of another.
func ratioAtMost(work, unit, base string, most float64) target {
	return target{fmt.Sprintf("≤ %.2f", most), func(r record) (float64, bool) {
		v, ok := r.ratio(work, lokiName, base, unit)
		return v / most, ok
	}}
}

// asGoodAs is a target of being no slower than a peer.
func asGoodAs(work, unit, peer string) target {
	return target{"≤ " + peer, func(r record) (float64, bool) {
		own, ok := r.figure(work, lokiName, unit)
		other, found := r.figure(work, peer, unit)
		if asleep, _ := r.figure(work, peer, stuck); !found && asleep > 0 {
			return 0, ok // none of the peer's waiters got the lock at all
		}
		return own / other, ok && found
	}}
}

// verdict says whether a target is met, and by how much it is not.
func (t target) verdict(r record) string {
	if t.excess == nil {
		return ""
	}
	switch excess, ok := t.excess(r); {
	case !ok || math.IsNaN(excess):
		return "not measured"
	case excess <= 1:
		return "yes"
	case excess < 1.1:
		return "no, by " + percents(100*(excess-1))
	default:
		return "no, " + significant(excess) + " ×"
	}
}

// How figures are written.

func durations(ns float64) string {
	switch {
	case ns < 1e3:
		return significant(ns) + " ns"
	case ns < 1e6:
		return significant(ns/1e3) + " µs"
	case ns < 1e9:
		return significant(ns/1e6) + " ms"
	}
	return significant(ns/1e9) + " s"
}

func percents(v float64) string { return significant(v) + " %" }

// significant writes v with three digits, or with all of those before the point.
func significant(v float64) string {
	if v == 0 || math.IsInf(v, 0) {
		return fmt.Sprint(v)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	return strconv.FormatFloat(v, 'f', min(decimals, 3), 64)
}
