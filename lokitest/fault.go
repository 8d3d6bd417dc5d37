package lokitest

import (
	"context"
	"time"
)

// Op is what a handler was asked to do, in the words of [loki.HandlerError.Op].
type Op string

// The operations. Lock and Grant are one: a Locker uses the one or the other for the same purpose.
const (
	OpLock    Op = "lock"
	OpExtend  Op = "extend"
	OpRelease Op = "release"
	OpNotify  Op = "notify"
	OpInspect Op = "inspect"
)

// Fault is what goes wrong with one call. The zero value is a call that goes well; what is set happens in the order of
// the fields.
type Fault struct {
	// Before keeps the call from the store for a while.
	Before Pause

	// Panic, if not nil, is what the call panics with, before it reaches the store.
	Panic any

	// Err, if not nil, is returned before the store is reached; with LostReply, after the store did what it was asked
	// for. What the store answered is then lost.
	Err       error
	LostReply bool

	// Refuse answers no without asking the store: another token holds the key, the claim is not held, nobody holds
	// the key. A release returns no error, says that the claim was not held, and releases nothing; who wants to be notified is told nothing, ever, as
	// where every message is lost.
	Refuse bool

	// After keeps the answer from the caller for a while.
	After Pause
}

// Pause is a part of a call in which nothing happens: a delay, or a hang.
type Pause struct {
	For   time.Duration   // no pause if zero
	Until <-chan struct{} // hangs until it is closed, after For; no hang if nil

	// IgnoreCtx goes on pausing when ctx ends, as clients do that have a deadline of their own or none. The store is
	// then reached nevertheless: a command lands late, when its caller has long gone.
	//
	// Otherwise the call returns ctx.Err() when ctx ends: before it reached the store, or instead of its answer.
	IgnoreCtx bool
}

func (p Pause) wait(ctx context.Context) error {
	done := ctx.Done()
	if p.IgnoreCtx {
		done = nil // never ready
	}
	if p.For > 0 {
		timer := time.NewTimer(p.For)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-done:
			return ctx.Err()
		}
	}
	if p.Until != nil {
		select {
		case <-p.Until:
		case <-done:
			return ctx.Err()
		}
	}
	return nil
}
