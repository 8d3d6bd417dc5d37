// Command compare measures this library against others and against plain commands of Redis, in one run on one redis-server
// that it starts itself.
//
//	make bench
//
// It prints a table, writes a file for benchstat for each contender and the curves into -results, and rewrites the report.
// The README of the module says what each row measures.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/internal/redistest"
)

// settings are how long things are measured, and where the results go.
type settings struct {
	short   bool
	only    *regexp.Regexp // the names of the works
	results string         // the folder of the files and pictures
	report  string         // RESULTS.md

	benchtime       string // of a slice, as go test has it
	rounds          int    // of slices of throughput
	turnsFor        time.Duration
	handOverRounds  int
	handOvers       int // in a slice
	blackHoleRounds int
	blackHoleCalls  int // in a slice
	leases          []int
	leaseExpiry     time.Duration
	leaseTimeout    time.Duration // of one answer; 0 is the default
}

func (s settings) throughputRounds() int { return s.rounds }

// full takes some six minutes.
var full = settings{
	benchtime: "250ms", rounds: 16, turnsFor: 300 * time.Millisecond,
	handOverRounds: 10, handOvers: 15,
	blackHoleRounds: 8, blackHoleCalls: 200,
	leases: []int{1_000, 10_000, 100_000}, leaseExpiry: 30 * time.Second,
}

// short does everything once, to see that it works.
var short = settings{
	short: true, benchtime: "1x", rounds: 1, turnsFor: time.Millisecond,
	handOverRounds: 1, handOvers: 1,
	blackHoleRounds: 1, blackHoleCalls: 5,
	leases: []int{10, 100}, leaseExpiry: 3 * time.Second, leaseTimeout: patience,
}

// works are all kinds of work, in the order in which they are done.
func works(s settings) []work {
	all := []work{acquireRelease, acquireRelease64, busyElsewhere, busyHere, handOver, turns, coreAlone, backgroundRelease, mirroredAsync, blackHole}
	for _, n := range s.leases {
		all = append(all, leases(n))
	}
	return all
}

func main() {
	if config := os.Getenv(workerVar); config != "" {
		exit(workerMain(config))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// parse reads the command line.
func parse(args []string, log io.Writer) (settings, error) {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(log)
	once := flags.Bool("short", false, "do everything once, for a moment, to see that it works")
	only := flags.String("only", "", "do the work whose names match this regular expression, and write no report")
	results := flags.String("results", "results", "the folder for the files and the pictures")
	report := flags.String("report", "RESULTS.md", "the report")
	benchtime := flags.String("benchtime", "", "the time of one slice, or the number of its operations with an x behind it")
	rounds := flags.Int("rounds", 0, "the number of slices that each contender has")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	s := full
	if *once {
		s = short
	}
	s.results, s.report = *results, *report
	s.benchtime, s.rounds = cmp.Or(*benchtime, s.benchtime), cmp.Or(*rounds, s.rounds)
	var err error
	s.only, err = regexp.Compile(*only)
	return s, err
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	rig.Silence()
	s, err := parse(args, log)
	if err != nil {
		return err
	}
	testing.Init()
	if err := flag.Set("test.benchtime", s.benchtime); err != nil {
		return err
	}
	return rig.Run(func(tb *rig.Rig) error {
		server := redistest.Start(tb)
		p, err := look(ctx, server.Client(tb))
		if err != nil {
			return err
		}
		if p.others > quiet {
			fmt.Fprintf(log, "Other work takes %s of the cores: the ratios may be off.\n", percents(100*p.others))
		}
		start := time.Now()
		l := &lab{settings: s, addr: server.Addr(), log: log}
		r := make(record)
		for _, w := range works(s) {
			if !s.only.MatchString(w.name) {
				continue
			}
			if r[w.name], err = l.measure(ctx, w); err != nil {
				return err
			}
		}
		for _, table := range [][][]string{comparison(r), ownTable(r, s.leases), leaseTable(r, s.leases)} {
			printTable(out, table)
		}
		for _, note := range stuckNotes(r) {
			fmt.Fprintln(out, note)
		}
		return write(r, p, s, commandLine(args), time.Since(start))
	})
}

// commandLine is how a run is repeated.
func commandLine(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return "make bench BENCHFLAGS='" + strings.Join(args, " ") + "'"
}

// write writes the files.
func write(r record, p place, s settings, command string, took time.Duration) error {
	if err := os.MkdirAll(s.results, 0o755); err != nil {
		return err
	}
	if err := writeBenchmarks(s.results, r, p, works(s)); err != nil {
		return err
	}
	if s.only.String() != "" { // the pictures and the report show all of it
		return nil
	}
	if err := writePictures(s.results, r, s.leases); err != nil {
		return err
	}
	var text bytes.Buffer
	writeResults(&text, r, p, command, s, took)
	return os.WriteFile(s.report, text.Bytes(), 0o644)
}
