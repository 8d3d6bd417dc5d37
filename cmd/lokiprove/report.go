package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// maxShown is how many overlaps or breaches of a kind are told one by one.
const maxShown = 10

// report tells a verdict.
func report(out io.Writer, v *referee.Verdict, s settings) {
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(out, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	_, _ = fmt.Fprintln(out)
	line("faults", "%d: %s", total(v.Faults), tally(v.Faults))
	line("calls", "%d: %s; cut off by a kill: %d", total(v.Results)+v.Cut, tally(v.Results), v.Cut)
	line("runs", "%d", v.Runs)
	line("overlaps", "%s", overlapLine(v))
	outside := slices.DeleteFunc(slices.Clone(v.Overlaps), func(o referee.Overlap) bool { return o.Broken != "" })
	slices.SortFunc(outside, func(a, b referee.Overlap) int { return int(b.Length() - a.Length()) })
	for _, o := range outside[:min(len(outside), maxShown)] {
		_, _ = fmt.Fprintf(out, "    %v: %s, %s\n", o, told(o.A), told(o.B))
	}
	if v.Linear != "" {
		line("history", "%s", v.Linear)
	}
	line("leftovers", "%d", v.Leftovers)
	if s.history != "" {
		line("history", "%s", s.history)
	}
	line("picture", "%s", s.svg)
	for i, b := range v.Breaches {
		if i == maxShown {
			_, _ = fmt.Fprintf(out, "    and %d more\n", len(v.Breaches)-i)
			break
		}
		_, _ = fmt.Fprintf(out, "BROKEN %s at %.3fs: %s\n", b.Rule, b.At.Seconds(), b.Text)
	}
	_, _ = fmt.Fprintln(out, verdictLine(v))
}

func verdictLine(v *referee.Verdict) string {
	if v.Kept() {
		return fmt.Sprintf("KEPT: mode %s, seed %d, %d runs, %d faults, no promise was broken", v.Setting.Mode, v.Setting.Seed, v.Runs, total(v.Faults))
	}
	return fmt.Sprintf("BROKEN: mode %s, seed %d, %d runs, %d faults, %d breaches", v.Setting.Mode, v.Setting.Seed, v.Runs, total(v.Faults), len(v.Breaches))
}

func overlapLine(v *referee.Verdict) string {
	bound := fmt.Sprintf("%v are allowed", v.Setting.Bound())
	switch {
	case v.Setting.Mode == referee.Async:
		bound = fmt.Sprintf("%v of it while all reached the secondary, where %v are allowed", v.Covered.Round(time.Millisecond), v.Setting.Bound())
	case v.Setting.Mode == referee.Alone && v.Setting.Bound() > 0:
		bound += " after the primary has forgotten"
	case v.Setting.Bound() == 0:
		bound = "none is allowed"
	}
	return fmt.Sprintf("%d, the longest %v (%s)", len(v.Overlaps), v.Longest.Round(time.Millisecond), bound)
}

// told is what became of a run.
func told(r referee.Run) string {
	switch {
	case r.Killed:
		return "killed"
	case r.Returned == 0:
		return "did not return"
	case r.Reason != "":
		return r.Result + " (" + r.Reason + ")"
	}
	return r.Result
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// tally is counts in words, the largest first.
func tally(counts map[string]int) string {
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return counts[b] - counts[a] })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, counts[name])
	}
	return strings.Join(names, ", ")
}
