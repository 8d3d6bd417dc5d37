package lokitest

import (
	"context"
	"sync"

	"github.com/lokilock/loki"
)

// Faults wraps a handler and makes its calls fail as told. It has every capability of the handler inside, and tells of
// the others that they are unsupported.
//
// The fault of a call is the first of: what [Faults.Next] has left for its op, what [Faults.Set] has set for it, what
// [Faults.Decide] decides. Faults is safe for concurrent use, also while calls are under way: those keep their fault.
type Faults struct {
	inner loki.LockHandler

	mu     sync.Mutex // never held while a call pauses or anything else is called
	next   map[Op][]Fault
	set    map[Op]Fault
	decide func(Op, loki.Claim) Fault
}

// NewFaults wraps inner. Until it is told otherwise, every call goes well.
func NewFaults(inner loki.LockHandler) *Faults {
	return &Faults{inner: orNothing(inner), next: make(map[Op][]Fault), set: make(map[Op]Fault)}
}

// Next lets the next calls of op meet with faults, one each, after those that are still due from before. A zero Fault
// among them lets a call go well.
func (f *Faults) Next(op Op, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[op] = append(f.next[op], faults...)
}

// Set lets every call of op meet with fault until [Faults.Clear].
func (f *Faults) Set(op Op, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set[op] = fault
}

// Decide has decide asked for the fault of every call for which there is no other. It is called by many goroutines at
// once, and must not pause. Nil ends that.
func (f *Faults) Decide(decide func(Op, loki.Claim) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

// Clear takes back what Next and Set have said about ops; without ops, all of that and what [Faults.Decide] said.
func (f *Faults) Clear(ops ...Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		delete(f.next, op)
		delete(f.set, op)
	}
	if len(ops) == 0 {
		clear(f.next)
		clear(f.set)
		f.decide = nil
	}
}

// Lock is the inner handler's, with the fault of [OpLock].
func (f *Faults) Lock(ctx context.Context, c loki.Claim) (held bool, err error) {
	err = f.call(ctx, OpLock, c, func(ctx context.Context) error {
		held, err = f.inner.Lock(ctx, c)
		return err
	})
	return held && err == nil, err
}

// Grant is the inner handler's, with the fault of [OpLock].
func (f *Faults) Grant(ctx context.Context, c loki.Claim) (g loki.Grant, err error) {
	inner, err := as[loki.Granter](f.inner)
	if err != nil {
		return loki.Grant{}, err
	}
	err = f.call(ctx, OpLock, c, func(ctx context.Context) error {
		g, err = inner.Grant(ctx, c)
		return err
	})
	if err != nil {
		return loki.Grant{}, err
	}
	return g, nil
}

// Extend is the inner handler's, with the fault of [OpExtend].
func (f *Faults) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	inner, err := as[loki.Extender](f.inner)
	if err != nil {
		return false, err
	}
	err = f.call(ctx, OpExtend, c, func(ctx context.Context) error {
		held, err = inner.Extend(ctx, c)
		return err
	})
	return held && err == nil, err
}

// ExtendAll is the inner handler's, with the fault of [OpExtend]: one for the whole call. What [Faults.Decide] is asked about is
// the first claim.
func (f *Faults) ExtendAll(ctx context.Context, claims []loki.Claim) (answers []loki.Extended, err error) {
	inner, err := as[loki.BatchExtender](f.inner)
	if err != nil {
		return nil, err
	}
	var first loki.Claim
	if len(claims) > 0 {
		first = claims[0]
	}
	answers = make([]loki.Extended, len(claims)) // of one that is refused
	err = f.call(ctx, OpExtend, first, func(ctx context.Context) error {
		answers, err = inner.ExtendAll(ctx, claims)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// Release is the inner handler's, with the fault of [OpRelease].
func (f *Faults) Release(ctx context.Context, c loki.Claim) error {
	return f.call(ctx, OpRelease, c, func(ctx context.Context) error { return f.inner.Release(ctx, c) })
}

// ReleaseHeld is the inner handler's, with the fault of [OpRelease].
func (f *Faults) ReleaseHeld(ctx context.Context, c loki.Claim) (held bool, err error) {
	inner, err := as[loki.Releaser](f.inner)
	if err != nil {
		return false, err
	}
	err = f.call(ctx, OpRelease, c, func(ctx context.Context) error {
		held, err = inner.ReleaseHeld(ctx, c)
		return err
	})
	return held && err == nil, err
}

// Notify is the inner handler's, with the fault of [OpNotify]. What [Faults.Decide] is asked about is a claim of which
// only the key is known. However late it lands, it listens no longer than until ctx ends.
func (f *Faults) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	inner, err := as[loki.Notifier](f.inner)
	if err != nil {
		return nil, err
	}
	var frees <-chan struct{} = make(chan struct{}) // of one who is refused
	err = f.call(ctx, OpNotify, loki.Claim{Key: key}, func(reach context.Context) error {
		life, end := context.WithCancel(reach)
		frees, err = inner.Notify(life, key)
		context.AfterFunc(ctx, end) // reach outlives ctx if the fault ignores it
		return err
	})
	if err != nil {
		return nil, err
	}
	return frees, nil
}

// Inspect is the inner handler's, with the fault of [OpInspect]. What [Faults.Decide] is asked about is a claim of
// which only the key is known.
func (f *Faults) Inspect(ctx context.Context, key string) (h loki.Holder, held bool, err error) {
	inner, err := as[loki.Inspector](f.inner)
	if err != nil {
		return loki.Holder{}, false, err
	}
	err = f.call(ctx, OpInspect, loki.Claim{Key: key}, func(ctx context.Context) error {
		h, held, err = inner.Inspect(ctx, key)
		return err
	})
	if err != nil {
		return loki.Holder{}, false, err
	}
	return h, held, nil
}

// Validate is the inner handler's. A handler that has nothing to validate is valid; a Faults around nothing is not.
func (f *Faults) Validate() error { return validate(f.inner) }

func (f *Faults) wrapped() loki.LockHandler { return f.inner }

// call is one call with its fault: every operation passes here. An answer that reach leaves behind counts only if call
// returns nil.
func (f *Faults) call(ctx context.Context, op Op, c loki.Claim, reach func(context.Context) error) error {
	fault := f.fault(op, c)
	if err := fault.Before.wait(ctx); err != nil {
		return err
	}
	switch {
	case fault.Panic != nil:
		panic(fault.Panic)
	case fault.Err != nil && !fault.LostReply:
		return fault.Err
	}
	if !fault.Refuse {
		if fault.Before.IgnoreCtx {
			ctx = context.WithoutCancel(ctx)
		}
		if err := reach(ctx); err != nil {
			return err
		}
	}
	if err := fault.After.wait(ctx); err != nil {
		return err
	}
	return fault.Err
}

// fault is the one that this call meets with.
func (f *Faults) fault(op Op, c loki.Claim) Fault {
	f.mu.Lock()
	if due := f.next[op]; len(due) > 0 {
		f.next[op] = due[1:]
		f.mu.Unlock()
		return due[0]
	}
	set, ok := f.set[op]
	decide := f.decide
	f.mu.Unlock()
	if !ok && decide != nil {
		return decide(op, c)
	}
	return set
}
