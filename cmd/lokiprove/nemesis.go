package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/retry"
)

// nemesis carries a schedule out.
type nemesis struct {
	stores *stores
	fleet  []*member
	book   *book
}

// step is the beginning or the end of a fault.
type step struct {
	at     time.Duration
	fault  fault
	begins bool
}

// run returns when the last fault is over, or ctx ends and every fault that has begun is over.
func (n *nemesis) run(ctx context.Context, faults []fault) error {
	var steps []step
	for _, f := range faults {
		steps = append(steps, step{f.at, f, true}, step{f.end, f, false})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	begun := map[int]bool{}
	for _, s := range steps {
		retry.Sleep(ctx, s.at-(monotonic()-n.book.origin))
		if s.begins && ctx.Err() != nil || !s.begins && !begun[s.fault.id] {
			continue
		}
		begun[s.fault.id] = true
		// What has begun is brought to its end whatever ctx says.
		if err := n.take(context.WithoutCancel(ctx), s); err != nil {
			return err
		}
	}
	return nil
}

// take takes one step. A fault is written down before it begins and after it is over.
func (n *nemesis) take(ctx context.Context, s step) error {
	f := s.fault
	if s.begins {
		n.book.write(f.record())
		return n.begin(ctx, f)
	}
	err := n.end(ctx, f)
	n.book.write(referee.Record{What: referee.Over, ID: f.id})
	return err
}

func (f fault) record() referee.Record {
	r := referee.Record{What: referee.Fault, ID: f.id, Kind: f.kind, Worker: f.worker, Store: f.store}
	if f.kind == referee.Slow {
		r.Text = fmt.Sprint(f.delay.Round(time.Millisecond))
	}
	return r
}

func (n *nemesis) begin(ctx context.Context, f fault) error {
	switch f.kind {
	case referee.Kill:
		n.fleet[f.worker-1].kill()
	case referee.Stop:
		return n.fleet[f.worker-1].signal(syscall.SIGSTOP)
	case referee.Freeze:
		n.stores.server(f.store).Stop(n.stores.tb)
	case referee.Crash, referee.Restart:
		n.stores.kill(f.store)
	case referee.Promote:
		n.stores.detach(ctx)
	case referee.Full:
		n.fleet[f.worker-1].order(orderHold, f.store)
	}
	for _, m := range n.met(f) {
		way := m.ways[f.store]
		switch f.kind {
		case referee.Cut:
			way.Refuse()
		case referee.Hole:
			way.BlackHole()
		case referee.Slow:
			way.Delay(f.delay)
		case referee.LostReply:
			way.LoseReply(func([]byte) bool { return true })
		case referee.Disconnect:
			way.Disconnect()
		case referee.Forget:
			way.Forget()
		}
	}
	return nil
}

func (n *nemesis) end(ctx context.Context, f fault) error {
	switch f.kind {
	case referee.Kill:
		return n.fleet[f.worker-1].start(ctx)
	case referee.Stop:
		return n.fleet[f.worker-1].signal(syscall.SIGCONT)
	case referee.Freeze:
		n.stores.server(f.store).Cont(n.stores.tb)
	case referee.Crash:
		n.stores.voter(f.store).restart(n.stores.tb)
	case referee.Restart:
		if err := n.stores.restartEmpty(ctx, f.store); err != nil {
			return err
		}
	case referee.Promote:
		n.stores.promote(ctx)
	case referee.Full:
		n.fleet[f.worker-1].order(orderFree, f.store)
	}
	for _, m := range n.met(f) {
		m.ways[f.store].PassThrough()
	}
	return nil
}

// met is whose way to a store the fault is on.
func (n *nemesis) met(f fault) []*member {
	switch {
	case f.store == "", referee.MeetsServer(f.kind):
		return nil
	case f.worker == 0:
		return n.fleet
	}
	return n.fleet[f.worker-1 : f.worker]
}
