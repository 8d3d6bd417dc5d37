package main

// This file is a worker: one instance of a service. Each has a Locker and a client of its own, as on a machine of its
// own.

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/examples/customhandler"
	"github.com/lokilock/loki/redishandler"
)

type worker struct {
	name    string
	locker  *loki.Locker
	rdb     *redis.Client
	renewed chan string // the stores that have renewed its lock
}

func newWorker(name, redisAddr string, db *sql.DB) (*worker, error) {
	w := &worker{name: name, rdb: redis.NewClient(&redis.Options{Addr: redisAddr}), renewed: make(chan string, 64)}
	var err error
	w.locker, err = loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redishandler.New(w.rdb)).
		SetSecondaryLockHandler(customhandler.New(db)).
		SetHolder(name). // by default the host and the process id, which all workers here share
		SetObserver(w.observe).
		Build()
	return w, err
}

// try starts the job, if nobody else is on it.
func (w *worker) try(ctx context.Context, job func(context.Context) error) try {
	t := try{worker: w}
	t.err = w.locker.ExecuteWithinLock(ctx, expiry, job, loki.WithOutcome(&t.outcome))
	return t
}

// close waits for the last release. Clients are the caller's: a Locker closes none.
func (w *worker) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := w.locker.Close(ctx); err != nil {
		return err
	}
	if err := w.rdb.Close(); !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}

func (w *worker) observe(_ context.Context, e loki.Event) {
	if e.Kind != loki.KindRenewed {
		return
	}
	select {
	case w.renewed <- string(e.Store):
	default: // nobody wants to know
	}
}

// awaitRenewal waits until store has renewed the worker's lock.
func (w *worker) awaitRenewal(ctx context.Context, store string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*expiry, fmt.Errorf("%s's lock was not renewed by the %s", w.name, store))
	defer cancel()
	for {
		select {
		case by := <-w.renewed:
			if by == store {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaitPrimary acquires the job's lock until the primary grants it: a Locker may need a moment to notice for this key that
// the primary is back.
func (w *worker) awaitPrimary(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*expiry, fmt.Errorf("%s never got a lock from the primary", w.name))
	defer cancel()
	for {
		var o loki.Outcome
		err := w.locker.ExecuteWithinLock(ctx, expiry, func(context.Context) error { return nil }, loki.WithOutcome(&o))
		if loki.IgnoreBusy(err) != nil || o.Store == "primary" {
			return err
		}
		if err := work(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// try is what came of one.
type try struct {
	worker  *worker
	outcome loki.Outcome
	err     error
}

const unnamed = "another worker"

// holder is who is on the job, as far as the store that refused reports it: Redis does, the secondary here does not.
func (t try) holder() string {
	if busy, ok := errors.AsType[*loki.BusyError](t.err); ok {
		return cmp.Or(busy.Holder.ID, unnamed)
	}
	return ""
}

func (t try) wasSkippedFor(w *worker) error {
	switch {
	case t.err == nil:
		return fmt.Errorf("%s ran the job as well as %s", t.worker.name, w.name)
	case t.holder() != w.name && t.holder() != unnamed:
		return fmt.Errorf("%s should have been skipped because of %s: %w", t.worker.name, w.name, t.err)
	}
	return nil
}
