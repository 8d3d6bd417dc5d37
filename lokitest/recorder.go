package lokitest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
)

// Call is one call of a handler, and what came of it.
type Call struct {
	Op    Op
	Claim loki.Claim // what was asked; for [OpInspect] and [OpNotify] only the key

	Held   bool        // the answer of Lock, Grant, Extend and ReleaseHeld; for [OpInspect], whether anybody holds the key
	Grant  loki.Grant  // the answer of Grant in full; zero for other methods
	Holder loki.Holder // the answer of Inspect
	Err    error

	// Batch is how many claims the call of ExtendAll had that this was one of; 0 if it was a call of Extend.
	Batch int

	// Start and End are when the call was made and when it returned. End is zero while it is under way, and for ever
	// if it panicked.
	Start, End time.Time
}

// String is the call in one line, for the message of a failing test.
func (c Call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %q", c.Op, c.Claim.Key)
	if c.Claim.Token != "" {
		fmt.Fprintf(&b, " by %s for %v", c.Claim.Token, c.Claim.Expiry)
	}
	switch {
	case c.End.IsZero():
		b.WriteString(": under way")
		return b.String()
	case c.Err != nil:
		fmt.Fprintf(&b, ": %v", c.Err)
	case c.Op == OpRelease:
		b.WriteString(": done")
	case c.Op == OpNotify:
		b.WriteString(": listening")
	default:
		fmt.Fprintf(&b, ": %v", c.Held)
	}
	fmt.Fprintf(&b, " after %v", c.End.Sub(c.Start))
	return b.String()
}

// Recorder wraps a handler and records every call that reaches it. It has every capability of the handler inside, and
// tells of the others that they are unsupported; that is not recorded, since nothing was asked.
//
// It is safe for concurrent use.
type Recorder struct {
	inner loki.LockHandler

	mu    sync.Mutex // never held while the inner handler is called
	calls []*Call
}

// NewRecorder wraps inner.
func NewRecorder(inner loki.LockHandler) *Recorder { return &Recorder{inner: orNothing(inner)} }

// Calls returns a copy of what was recorded, in the order in which the calls were made: those of ops, or all if there
// are none.
func (r *Recorder) Calls(ops ...Op) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []Call
	for _, c := range r.calls {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			calls = append(calls, *c)
		}
	}
	return calls
}

// Reset forgets what was recorded, calls under way included.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

// Lock is the inner handler's.
func (r *Recorder) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	call := r.begin(OpLock, c, 0)
	held, err := r.inner.Lock(ctx, c)
	r.end(call, Call{Held: held, Err: err})
	return held, err
}

// Grant is the inner handler's.
func (r *Recorder) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	inner, err := as[loki.Granter](r.inner)
	if err != nil {
		return loki.Grant{}, err
	}
	call := r.begin(OpLock, c, 0)
	g, err := inner.Grant(ctx, c)
	r.end(call, Call{Held: g.Held, Grant: g, Err: err})
	return g, err
}

// Extend is the inner handler's.
func (r *Recorder) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	inner, err := as[loki.Extender](r.inner)
	if err != nil {
		return false, err
	}
	call := r.begin(OpExtend, c, 0)
	held, err := inner.Extend(ctx, c)
	r.end(call, Call{Held: held, Err: err})
	return held, err
}

// ExtendAll is the inner handler's. Each claim is recorded as a call of its own.
func (r *Recorder) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	inner, err := as[loki.BatchExtender](r.inner)
	if err != nil {
		return nil, err
	}
	calls := make([]*Call, len(claims))
	for i, c := range claims {
		calls[i] = r.begin(OpExtend, c, len(claims))
	}
	answers, err := inner.ExtendAll(ctx, claims)
	for i, call := range calls {
		answer := Call{Err: err}
		if err == nil && i < len(answers) {
			answer.Held, answer.Err = answers[i].Held, answers[i].Err
		}
		r.end(call, answer)
	}
	return answers, err
}

// Release is the inner handler's.
func (r *Recorder) Release(ctx context.Context, c loki.Claim) error {
	call := r.begin(OpRelease, c, 0)
	err := r.inner.Release(ctx, c)
	r.end(call, Call{Err: err})
	return err
}

// ReleaseHeld is the inner handler's.
func (r *Recorder) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	inner, err := as[loki.Releaser](r.inner)
	if err != nil {
		return false, err
	}
	call := r.begin(OpRelease, c, 0)
	held, err := inner.ReleaseHeld(ctx, c)
	r.end(call, Call{Held: held, Err: err})
	return held, err
}

// Notify is the inner handler's. What it tells then is not recorded.
func (r *Recorder) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	inner, err := as[loki.Notifier](r.inner)
	if err != nil {
		return nil, err
	}
	call := r.begin(OpNotify, loki.Claim{Key: key}, 0)
	frees, err := inner.Notify(ctx, key)
	r.end(call, Call{Err: err})
	return frees, err
}

// Inspect is the inner handler's.
func (r *Recorder) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	inner, err := as[loki.Inspector](r.inner)
	if err != nil {
		return loki.Holder{}, false, err
	}
	call := r.begin(OpInspect, loki.Claim{Key: key}, 0)
	h, held, err := inner.Inspect(ctx, key)
	r.end(call, Call{Held: held, Holder: h, Err: err})
	return h, held, err
}

// Validate is the inner handler's. A handler that has nothing to validate is valid; a Recorder around nothing is not.
func (r *Recorder) Validate() error { return validate(r.inner) }

func (r *Recorder) wrapped() loki.LockHandler { return r.inner }

// begin records that a call is under way, so that the order is that in which calls were made, not that of their ends.
func (r *Recorder) begin(op Op, c loki.Claim, batch int) *Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := &Call{Op: op, Claim: c, Batch: batch, Start: time.Now()}
	r.calls = append(r.calls, call)
	return call
}

// end completes what begin recorded with the answer.
func (r *Recorder) end(call *Call, answer Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer.Op, answer.Claim, answer.Batch, answer.Start, answer.End = call.Op, call.Claim, call.Batch, call.Start, time.Now()
	*call = answer
}
