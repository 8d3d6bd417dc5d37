package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// line is one row of the table of all contenders.
type line struct {
	title  string
	work   work
	unit   string
	ratio  bool // to raw, whose own figure is shown in its place
	format func(float64) string
	target target
}

var lines = []line{
	{"acquire and release, one goroutine", acquireRelease, nsPerOp, true, durations, ratioAtMost(acquireRelease.name, nsPerOp, rawName, 1.15)},
	{"the same, 64 goroutines, a key each", acquireRelease64, nsPerOp, true, durations, ratioAtMost(acquireRelease64.name, nsPerOp, rawName, 0.55)},
	{"busy, held by another process", busyElsewhere, nsPerOp, true, durations, ratioAtMost(busyElsewhere.name, nsPerOp, rawName, 1.15)},
	{"busy, held by this process", busyHere, nsPerOp, true, durations, atMost(busyHere.name, nsPerOp, 500, "< 500 ns")},
	{"the same: allocations", busyHere, allocsPerOp, false, significant, atMost(busyHere.name, allocsPerOp, 1, "≤ 1")},
	{"a waiter in another process gets it, p50", handOver, p50, false, durations, asGoodAs(handOver.name, p50, rueidislockName)},
	{"the same, p99", handOver, p99, false, durations, target{}},
	{"16 goroutines of one process, one key, a turn", turns, nsPerOp, false, durations, atMost(turns.name, nsPerOp, 2000, "≤ 2 µs")},
	{"the same: turns of the luckiest goroutine", turns, mostOfOne, false, percents, target{}},
	{"allocations, acquire and release", acquireRelease, allocsPerOp, false, significant, atMost(acquireRelease.name, allocsPerOp, 30, "≤ 30")},
	{"core alone (handler in memory)", coreAlone, nsPerOp, false, durations, atMost(coreAlone.name, nsPerOp, 2000, "≤ 2 µs")},
	{"the same: allocations", coreAlone, allocsPerOp, false, significant, atMost(coreAlone.name, allocsPerOp, 10, "≤ 10")},
}

// ownLine is a row of the table of what no peer has to do.
type ownLine struct {
	title  string
	work   work
	shown  func(record) string
	target target
}

var ownLines = []ownLine{
	{
		"acquire and release, 64 locks in turn, without waiting for the releases, against raw, which waits",
		backgroundRelease,
		func(r record) string {
			return ratioOf(r, backgroundRelease, rawName, nsPerOp) + " × " + figureOf(r, backgroundRelease, rawName, nsPerOp, durations)
		},
		ratioAtMost(backgroundRelease.name, nsPerOp, rawName, 0.65),
	},
	{
		"mirrored asynchronously to PostgreSQL, 4 callers, fn of 5 ms: a call, against one without a secondary",
		mirroredAsync,
		func(r record) string {
			return ratioOf(r, mirroredAsync, primaryOnly, nsPerOp) + " × " + figureOf(r, mirroredAsync, primaryOnly, nsPerOp, durations)
		},
		ratioAtMost(mirroredAsync.name, nsPerOp, primaryOnly, 1.10),
	},
	{
		"the same: locks that the secondary has recorded",
		mirroredAsync,
		func(r record) string { return figureOf(r, mirroredAsync, lokiName, mirrored, percents) },
		target{},
	},
	{
		"the same: mirror writes that came too late",
		mirroredAsync,
		func(r record) string { return significant(r.sum(mirroredAsync.name, lokiName, late)) },
		target{"none", func(r record) (float64, bool) { return 1 + r.sum(mirroredAsync.name, lokiName, late), true }},
	},
	{
		"primary black-holed: until the fn of the first call runs",
		blackHole,
		func(r record) string { return figureOf(r, blackHole, lokiName, first, durations) },
		target{"≤ 500 ms and a round trip to the secondary", func(r record) (float64, bool) {
			v, ok := r.figure(blackHole.name, lokiName, first)
			trip, found := r.figure(blackHole.name, secondaryOnly, first)
			return v / (float64(primaryTimeout) + trip), ok && found
		}},
	},
	{
		"the same: p99 of the calls that follow, against that of calls on the secondary alone",
		blackHole,
		func(r record) string {
			own, other := figureOf(r, blackHole, lokiName, p99, durations), figureOf(r, blackHole, secondaryOnly, p99, durations)
			return own + ", alone " + other
		},
		target{"≤ 1.20", func(r record) (float64, bool) {
			own, ok := r.figure(blackHole.name, lokiName, p99)
			other, found := r.figure(blackHole.name, secondaryOnly, p99)
			return own / other / 1.2, ok && found
		}},
	},
}

// stuckNotes says which contender has left waiters without a wake-up.
func stuckNotes(r record) (notes []string) {
	for _, w := range []work{handOver, turns} {
		for _, name := range waiting {
			if n := r.sum(w.name, name, stuck); n > 0 {
				notes = append(notes, fmt.Sprintf("%s: %s left %.0f waiters asleep after the lock was free, for %v, until they were called off.", w.name, name, n, waitsAtMost))
			}
		}
	}
	return notes
}

func figureOf(r record, w work, who, unit string, format func(float64) string) string {
	v, ok := r.figure(w.name, who, unit)
	if !ok {
		return none
	}
	return format(v)
}

func ratioOf(r record, w work, base, unit string) string {
	v, ok := r.ratio(w.name, lokiName, base, unit)
	if !ok {
		return none
	}
	return significant(v)
}

// none is in the place of a figure that does not exist.
const none = "—"

// comparison is the table of all contenders. What was not measured is left out, here and below: see -only.
func comparison(r record) [][]string {
	table := [][]string{append(append([]string{"work"}, names...), "target", "met")}
	for _, l := range lines {
		if r[l.work.name] == nil {
			continue
		}
		row := []string{l.title}
		for _, name := range names {
			v, ok := r.figure(l.work.name, name, l.unit)
			cell := l.format(v)
			if l.ratio && name != rawName {
				v, ok = r.ratio(l.work.name, name, rawName, l.unit)
				cell = significant(v)
			}
			if !ok {
				cell = none
			}
			row = append(row, cell)
		}
		table = append(table, append(row, l.target.text, l.target.verdict(r)))
	}
	return table
}

// ownTable is the table of what no peer has to do.
func ownTable(r record, leaseCounts []int) [][]string {
	table := [][]string{{"work", "measured", "target", "met"}}
	for _, l := range slices.Concat(ownLines, leaseLines(leaseCounts[len(leaseCounts)-1])) {
		if r[l.work.name] != nil {
			table = append(table, []string{l.title, l.shown(r), l.target.text, l.target.verdict(r)})
		}
	}
	return table
}

// leaseLines are about the largest number of leases; the curve shows the others.
func leaseLines(n int) []ownLine {
	w := leases(n)
	shown := func(unit string, format func(float64) string) func(record) string {
		return func(r record) string { return figureOf(r, w, lokiName, unit, format) }
	}
	return []ownLine{
		{fmt.Sprintf("%d leases held by one process: goroutines", n), w, shown(goroutines, significant), atMost(w.name, goroutines, float64(n)/100, "none for each lease")},
		{"the same: heap of each", w, shown(heapEach, func(v float64) string { return significant(v) + " B" }), atMost(w.name, heapEach, 1024, "≤ 1 KiB")},
		{"the same: age of the oldest record in the store", w, shown(oldest, func(v float64) string { return percents(v) + " of its expiry" }), atMost(w.name, oldest, 50, "≤ half its expiry")},
		{"the same: leases lost", w, shown(lost, significant), target{}},
	}
}

// leaseTable is the curve in numbers.
func leaseTable(r record, counts []int) [][]string {
	table := [][]string{{"leases", "goroutines", "heap each", "CPU, of one core", "oldest record, of its expiry", "lost"}}
	for _, n := range counts {
		w := leases(n)
		if r[w.name] == nil {
			continue
		}
		table = append(table, []string{
			fmt.Sprint(n), figureOf(r, w, lokiName, goroutines, significant), figureOf(r, w, lokiName, heapEach, significant) + " B",
			figureOf(r, w, lokiName, cpu, percents), figureOf(r, w, lokiName, oldest, percents), figureOf(r, w, lokiName, lost, significant),
		})
	}
	return table
}

// printTable writes a table for a terminal, unless it has only its head.
func printTable(out io.Writer, table [][]string) {
	if len(table) == 1 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range table {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	fmt.Fprintln(w)
	_ = w.Flush()
}

// markdown writes a table for RESULTS.md.
func markdown(out io.Writer, table [][]string) {
	for i, row := range table {
		fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	fmt.Fprintln(out)
}

// quiet is the share of the processors up to which others may use them.
const quiet = 0.1

// writeResults writes RESULTS.md.
func writeResults(out io.Writer, r record, p place, command string, s settings, took time.Duration) {
	fmt.Fprintf(out, "# Results\n\nWritten by `make bench`; [README.md](README.md) says what each row measures and how to read it.\n\n")
	if s.short {
		fmt.Fprintf(out, "**This run did everything once, for a moment: its figures mean nothing.**\n\n")
	}
	if p.others > quiet {
		fmt.Fprintf(out, "**The machine was not quiet: other work took %s of its cores when the run began. The ratios may be off.**\n\n", percents(100*p.others))
	}
	fmt.Fprintf(out, "| | |\n|---|---|\n")
	fmt.Fprintf(out, "| command | `%s`, %v |\n", command, took.Round(time.Second))
	fmt.Fprintf(out, "| machine | %s, %d cores, %s |\n", p.cpu, p.cores, p.kernel)
	for _, name := range append([]string{"Go", "redis-server", "PostgreSQL"}, modules...) {
		version := p.program[name]
		if version == "" {
			version = "unknown"
		}
		fmt.Fprintf(out, "| %s | %s |\n", name, version)
	}
	fmt.Fprintf(out, "\n## Against others\n\nThe figure of raw, and the ratio to it of the others; absolute figures where the row is a wait, a number, or a percentage.\n\n")
	markdown(out, comparison(r))
	fmt.Fprintf(out, "%s\n\n", coreNote)
	for _, note := range stuckNotes(r) {
		fmt.Fprintf(out, "%s\n\n", note)
	}
	fmt.Fprintf(out, "![How long a waiter in another process waits](results/handover.svg)\n\n")
	fmt.Fprintf(out, "## What no peer has to do\n\n")
	markdown(out, ownTable(r, s.leases))
	fmt.Fprintf(out, "%s\n\n", leftOut)
	fmt.Fprintf(out, "## Many leases\n\nEach from `Acquire`, with an expiry of %v, through two renewals.\n\n", s.leaseExpiry)
	markdown(out, leaseTable(r, s.leases))
	fmt.Fprintf(out, "![What many leases take](results/leases.svg)\n")
}

const (
	coreNote = "The peers have no store in memory, so that the last two rows are Loki's alone."
	leftOut  = "Not measured: releasing without waiting for the answer (target: acquire and release ≤ 0.65 of raw), which the library does not have yet."
)
