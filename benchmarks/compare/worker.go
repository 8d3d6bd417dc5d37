package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/lokilock/loki/benchmarks/internal/rig"
)

// worker is what another process needs to know. It is this program, started with the worker as JSON in workerVar.
type worker struct {
	Addr    string
	Expiry  time.Duration
	Leases  int           // not 0: it holds so many (see leases.go)
	Timeout time.Duration // of its Locker's primary then; 0 is the default
}

const workerVar = "LOKI_BENCH_WORKER"

// order is what a worker is told to do: open a contender, have it hold a lock until the process ends, or have it wait for one.
type order struct{ Do, Contender, Key string }

// answer is what came of an order.
type answer struct {
	Granted time.Time // to a waiter; zero if it was never woken
	Err     string
}

// waitsAtMost is long after the last poll of the slowest. A waiter that still waits then is one that nobody wakes.
const waitsAtMost = 5 * time.Second

// workerMain is the worker process. It answers orders until its input ends.
func workerMain(config string) error {
	rig.Silence()
	var w worker
	if err := json.Unmarshal([]byte(config), &w); err != nil {
		return err
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if w.Leases > 0 {
		return holdLeases(w, in, out)
	}
	return rig.Run(func(tb *rig.Rig) error {
		opened := make(map[string]contender)
		for {
			var o order
			if err := in.Decode(&o); err != nil {
				return nil //nolint:nilerr // the input has ended
			}
			var a answer
			var err error
			switch o.Do {
			case "open":
				opened[o.Contender], err = open(tb, o.Contender, w.Addr, w.Expiry)
			case "hold":
				var release func() (time.Time, error)
				if release, err = hold(opened[o.Contender], o.Key); err == nil {
					tb.Cleanup(func() { _, _ = release() })
				}
			case "wait":
				ctx, cancel := context.WithTimeout(context.Background(), waitsAtMost)
				err = opened[o.Contender].wait(ctx, o.Key, func() { a.Granted = time.Now() })
				if ctx.Err() != nil {
					err = nil
				}
				cancel()
			}
			if err != nil {
				a.Err = err.Error()
			}
			if err := out.Encode(a); err != nil {
				return err
			}
		}
	})
}

// workerProcess is a worker as its parent sees it.
type workerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startWorker starts a worker, which ends with tb.
func startWorker(tb *rig.Rig, w worker) (*workerProcess, error) {
	config, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append(os.Environ(), workerVar+"="+string(config))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &workerProcess{cmd: cmd, in: in, out: json.NewDecoder(out)}
	tb.Cleanup(p.end)
	return p, nil
}

func (p *workerProcess) order(o order) error { return json.NewEncoder(p.in).Encode(o) }

// answer waits for the worker to have done what it was told.
func (p *workerProcess) answer() (a answer, err error) {
	if err := p.out.Decode(&a); err != nil {
		return a, fmt.Errorf("a worker has ended: %w", err)
	}
	if a.Err != "" {
		return a, fmt.Errorf("a worker: %s", a.Err)
	}
	return a, nil
}

// do has the worker do something at once.
func (p *workerProcess) do(o order) error {
	if err := p.order(o); err != nil {
		return err
	}
	_, err := p.answer()
	return err
}

// workerEnds is how long a worker may take to release what it holds.
const workerEnds = 10 * time.Second

func (p *workerProcess) end() {
	_ = p.in.Close()
	late := time.AfterFunc(workerEnds, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait()
}
