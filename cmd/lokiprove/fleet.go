package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/faultproxy"
)

// endLimit is how long a worker may take to end when it is asked to.
const endLimit = closeLimit + 5*time.Second

// member is one worker and its ways to the stores. The process may be killed and started again; the ways stay.
type member struct {
	assignment
	ways map[string]*faultproxy.Proxy // by store
	book *book

	process *process
}

// process is one life of a worker.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser // takes orders; closed: please end
	stderr bytes.Buffer
	ended  chan struct{} // closed when it has been waited for

	mu     sync.Mutex
	killed bool
}

// start begins the next life. It is ended by kill or end, whatever becomes of ctx.
func (m *member) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m.Life++
	config, err := json.Marshal(m.assignment)
	if err != nil {
		return err
	}
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(ctx), self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerConfig+"="+string(config))
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("worker %d does not start: %w", m.Worker, err)
	}
	m.process = p
	go p.listen(out, m.book, m.assignment)
	return nil
}

// listen writes down what the process tells, until it has ended.
func (p *process) listen(out io.Reader, book *book, a assignment) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r referee.Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue // cut off by a kill, in the middle of a line
		}
		book.add(r)
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if err != nil && !killed {
		book.write(referee.Record{What: referee.Crashed, Worker: a.Worker, Life: a.Life, Text: fmt.Sprintf("%v: %s", err, bytes.TrimSpace(p.stderr.Bytes()))})
	}
}

// kill ends the process at once.
func (m *member) kill() {
	p := m.process
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (m *member) signal(s syscall.Signal) error {
	if err := m.process.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v for worker %d: %w", s, m.Worker, err)
	}
	return nil
}

// order sends the process an order about its connections to a store. One that has been killed takes none.
func (m *member) order(verb, store string) {
	_, _ = fmt.Fprintln(m.process.stdin, verb, store)
}

// end asks the process to end, and writes it down if it does not.
func (m *member) end(ctx context.Context) {
	_ = m.process.stdin.Close()
	select {
	case <-m.process.ended:
		return
	case <-ctx.Done():
	}
	m.book.write(referee.Record{What: referee.Hung, Worker: m.Worker, Life: m.Life})
	m.kill()
}

// book is the history while it is made.
type book struct {
	origin time.Duration

	mu      sync.Mutex
	records []referee.Record
	copy    *json.Encoder // nil if nobody wants one
	failed  error         // of the copy
}

// write adds what happens now.
func (b *book) write(r referee.Record) {
	r.At = monotonic() - b.origin
	b.add(r)
}

func (b *book) add(r referee.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	if b.copy != nil {
		b.failed = errors.Join(b.failed, b.copy.Encode(r))
	}
}

// count tells how many records of a kind there are.
func (b *book) count(what referee.What) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, r := range b.records {
		if r.What == what {
			n++
		}
	}
	return n
}
