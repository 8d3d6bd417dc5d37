package main

import (
	"context"
	"errors"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// callNumber is the key in a context of the call that it belongs to. Renewals and mirror writes carry the values of their
// caller's context, so that an answer can be told to belong to a run.
type callNumber struct{}

// witness is a store that tells when it confirmed a claim: in the same goroutine, before the Locker hears of it, so that a
// process that is killed has told of everything it could rely on. An observer is told later.
//
// It reports the lock of the proof only. A probe of the circuit breaker has a key of its own and the context of the call whose
// failure it follows: its grant would prolong the validity of a run that no store has confirmed.
type witness struct {
	store   string
	key     string
	handler fullHandler
	tell    func(referee.Record)
}

type fullHandler interface {
	loki.LockHandler
	loki.Granter
	loki.Extender
}

var (
	_ fullHandler   = (*witness)(nil)
	_ loki.Notifier = (*witness)(nil)
	_ loki.Bounder  = (*witness)(nil)
)

// Bounds is that of the handler.
func (w *witness) Bounds() bool {
	b, ok := w.handler.(loki.Bounder)
	return ok && b.Bounds()
}

func (w *witness) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := w.Grant(ctx, c)
	return g.Held, err
}

func (w *witness) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	r := w.asked(ctx, "lock", c)
	g, err := w.handler.Grant(ctx, c)
	r.Fence = g.Fence
	w.answered(r, c, g.Held, err)
	return g, err
}

func (w *witness) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	r := w.asked(ctx, "extend", c)
	held, err := w.handler.Extend(ctx, c)
	w.answered(r, c, held, err)
	return held, err
}

func (w *witness) Release(ctx context.Context, c loki.Claim) error { return w.handler.Release(ctx, c) }

func (w *witness) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if n, ok := w.handler.(loki.Notifier); ok {
		return n.Notify(ctx, key)
	}
	return nil, errors.ErrUnsupported
}

func (w *witness) asked(ctx context.Context, op string, c loki.Claim) referee.Record {
	call, _ := ctx.Value(callNumber{}).(int)
	return referee.Record{What: referee.Confirmed, Call: call, Store: w.store, Op: op, Expiry: c.Expiry, Sent: monotonic()}
}

func (w *witness) answered(r referee.Record, c loki.Claim, held bool, err error) {
	if err == nil && held && c.Key == w.key {
		w.tell(r)
	}
}
