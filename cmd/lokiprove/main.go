// Command lokiprove is a proving ground: processes contend for one lock on real servers, faults are made, and a referee
// says whether a promise of loki was broken.
//
//	go -C cmd/lokiprove run . -mode sync -for 2m
//
// It prints a verdict and exits with 1 if a promise was broken, with 2 if the proof could not be made. The README beside
// it tells what it does, and what the picture that it draws shows.
//
// It does not prove that there is no fault: it shows that none was found.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/redistest"
)

const (
	exitBroken   = 1
	exitNoProof  = 2
	workerConfig = "LOKIPROVE_WORKER" // in the environment of a process that is a worker
)

func main() {
	if config := os.Getenv(workerConfig); config != "" {
		os.Exit(workerMain(config))
	}
	redis.SetLogger(silence{})
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its result: what the process exits with.
func run(args []string, out, errOut io.Writer) int {
	s, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(errOut, "lokiprove:", err)
		return exitNoProof
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rig := &rig{}
	defer rig.end()
	verdict, err := execute(ctx, rig, s, out)
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(errOut, "lokiprove:", err)
		return exitNoProof
	case !verdict.Kept():
		return exitBroken
	}
	return 0
}

// execute makes the proof, or takes the history of an earlier one, and tells what came of it.
func execute(ctx context.Context, tb redistest.TB, s settings, out io.Writer) (*referee.Verdict, error) {
	var records []referee.Record
	var err error
	if s.judge != "" {
		records, err = readHistory(s.judge)
	} else {
		records, err = prove(ctx, tb, s, schedule(s), out)
	}
	if err != nil {
		return nil, err
	}
	history, err := referee.New(records)
	if err != nil {
		return nil, err
	}
	verdict := referee.Judge(history)
	if err := drawTo(s.svg, history, verdict); err != nil {
		return nil, err
	}
	report(out, verdict, s)
	return verdict, nil
}

func readHistory(name string) ([]referee.Record, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return referee.Read(f)
}

// rig is the TB of a process that is not a test: it keeps what has to be cleaned up.
type rig struct{ cleanups []func() }

func (*rig) Helper() {}

func (r *rig) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Fatalf ends the process. It is for what goes wrong with the servers, which is no finding about loki.
func (r *rig) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "lokiprove: "+format+"\n", args...)
	r.end()
	os.Exit(exitNoProof)
}

// end cleans up, the latest first.
func (r *rig) end() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}
