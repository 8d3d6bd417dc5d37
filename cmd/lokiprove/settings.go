package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

const (
	// minExpiry leaves a lease some room on a machine that runs everything at once.
	minExpiry  = 200 * time.Millisecond
	maxWorkers = 16

	// tail is the quiet end of a proof, in expiries: long enough for the longest closure to end and another to begin.
	tail = 5
)

// settings are the flags.
type settings struct {
	length  time.Duration
	workers int
	mode    string
	seed    uint64
	expiry  time.Duration
	rate    float64  // faults per second
	kinds   []string // of the faults; none means all
	lossy   bool
	quorum  int // how many servers the primary consists of; 0: one, with a replica
	mssql   string
	history string
	svg     string
	judge   string
}

// parse returns an error that joins a sentence for every mistake.
func parse(args []string, usage io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("lokiprove", flag.ContinueOnError)
	f.SetOutput(usage)
	f.DurationVar(&s.length, "for", time.Minute, "how long the workers contend; the last five expiries of it are without faults")
	f.IntVar(&s.workers, "workers", 4, "how many processes contend")
	f.StringVar(&s.mode, "mode", referee.Async, "async or sync: two stores and how the second is told; alone: one store")
	f.Uint64Var(&s.seed, "seed", 0, "chooses the faults; 0 means a new one")
	f.DurationVar(&s.expiry, "expiry", time.Second, "of the lock")
	f.Float64Var(&s.rate, "faults-per-second", 2, "how many on average; 0 means none")
	f.Func("kinds", "of the faults, as in `\"forget,full pool\"`; by default all that the mode has", func(list string) error {
		s.kinds = strings.Split(list, ",")
		return nil
	})
	f.BoolVar(&s.lossy, "lossy", true, "let the primary forget: restart it empty, and promote a replica that missed writes; or, in a quorum, bring servers back empty that were away for longer than an expiry")
	f.IntVar(&s.quorum, "quorum", 0, "how many independent redis-servers the primary consists of: 3, 5 or 7; 0 means one with a replica")
	f.StringVar(&s.mssql, "mssql", os.Getenv("LOKI_TEST_MSSQL_DSN"), "`DSN` of a SQL Server to be the secondary instead of a second redis-server; LOKI_TEST_MSSQL_DSN is the default")
	f.StringVar(&s.history, "history", "", "write the history to this `file`, as JSON lines")
	f.StringVar(&s.svg, "svg", "", "draw the picture to this `file`; by default lokiprove.svg in a new temporary folder")
	f.StringVar(&s.judge, "judge", "", "judge and draw the history in this `file` instead of making one")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag: all settings are flags, see -help", f.Arg(0))
	}
	for s.seed == 0 {
		s.seed = rand.Uint64N(1_000_000) // short enough to be typed
	}
	if err := s.validate(); err != nil {
		return s, err
	}
	if s.svg == "" {
		dir, err := os.MkdirTemp("", "lokiprove-")
		if err != nil {
			return s, err
		}
		s.svg = filepath.Join(dir, "lokiprove.svg")
	}
	return s, nil
}

func (s settings) validate() error {
	var mistakes []error
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			mistakes = append(mistakes, fmt.Errorf(format, args...))
		}
	}
	add(s.mode != referee.Async && s.mode != referee.Sync && s.mode != referee.Alone, "-mode %q is none: use async, sync or alone", s.mode)
	add(s.workers < 2 || s.workers > maxWorkers, "-workers %d: there must be 2 to %d of them", s.workers, maxWorkers)
	add(s.expiry < minExpiry || s.expiry > loki.MaxExpiry, "-expiry %v: it must be at least %v", s.expiry, minExpiry)
	add(s.rate < 0 || s.rate > 20, "-faults-per-second %v: it must be between 0 and 20", s.rate)
	for _, name := range s.kinds {
		add(!slices.ContainsFunc(kinds, func(k kind) bool { return k.kind == name && s.possible(k) }),
			"-kinds: %q is no kind of fault in this mode: the README names them", name)
	}
	add(s.length < (tail+1)*s.expiry, "-for %v: the last %v are without faults, and %v more are needed", s.length, tail*s.expiry, s.expiry)
	add(s.quorum != 0 && s.quorum != 3 && s.quorum != 5 && s.quorum != 7, "-quorum %d: there must be 3, 5 or 7 servers, or 0 for one with a replica", s.quorum)
	add(s.mode == referee.Alone && s.mssql != "" && s.mssql != os.Getenv("LOKI_TEST_MSSQL_DSN"), "-mssql is a secondary, and -mode alone has none")
	return errors.Join(mistakes...)
}

// maxFault is how long a fault lasts at most.
func (s settings) maxFault() time.Duration { return 3 * s.expiry }

// away is for how long a server of a quorum is away before it comes back empty: longer than any of its claims lasts. The
// quorum asks for a hundredth of the expiry and 2 ms more than the expiry.
func (s settings) away() time.Duration { return s.expiry + s.expiry/20 + 10*time.Millisecond }

func (s settings) forReferee() *referee.Setting {
	stores := "a redis-server with a replica"
	if s.quorum > 0 {
		stores = fmt.Sprintf("a quorum of %d redis-servers", s.quorum)
	}
	switch {
	case s.mode == referee.Alone:
	case s.mssql != "":
		stores += ", and SQL Server as secondary"
	default:
		stores += ", and a redis-server as secondary"
	}
	return &referee.Setting{
		Mode: s.mode, Expiry: s.expiry, Workers: s.workers, Seed: s.seed, Lossy: s.lossy, Quorum: s.quorum, MaxFault: s.maxFault(), Stores: stores,
	}
}
