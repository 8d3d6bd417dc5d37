package referee

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// What the check for linearizability comes to.
const (
	linear    = "linearizable"
	notLinear = "not linearizable"
	undecided = "undecided: the check took too long"

	linearTimeout = 30 * time.Second
)

// A lock is a register that names its holder. What a worker does to it, and what happens to its claims without it:
type action int

const (
	take    action = iota // the call got the lock
	refused               // the call was told "busy"
	free                  // a claim that was held is gone: released or expired
	perhaps               // a call of unknown outcome may have recorded its claim
	gone                  // and if so, it is gone
)

type operation struct {
	action action
	call   int // whose claim; from 1
}

// lockModel has 0 for a free lock as its state, else the call that holds it. It is not deterministic because nobody knows
// of a request without an answer whether it was carried out.
var lockModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{0} },
	Step: func(state, input, _ any) []any {
		holder, op := state.(int), input.(operation)
		switch op.action {
		case take:
			if holder == 0 {
				return []any{op.call}
			}
		case refused:
			if holder != 0 {
				return []any{holder}
			}
		case free:
			if holder == op.call {
				return []any{0}
			}
		case perhaps:
			if holder == 0 {
				return []any{0, op.call}
			}
			return []any{holder}
		case gone:
			if holder == op.call {
				return []any{0}
			}
			return []any{holder}
		}
		return nil
	},
}

// linear looks for an order of all calls that explains what each of them returned.
//
// A claim may stay in the store after its lease is over: the release may have failed, or a renewal may still be on its
// way. But a fault ends, and the expiry passes, and then it is gone: until is that bound.
func (h *History) linear() string {
	until := h.MaxFault + 3*h.Expiry
	var ops []porcupine.Operation
	add := func(c Call, a action, call int, from, to time.Duration) {
		ops = append(ops, porcupine.Operation{
			// The calls of one process come one after the other, but what becomes of their claims does not: each
			// operation has a client of its own.
			ClientId: len(ops), Input: operation{a, call}, Call: int64(from), Return: int64(max(to, from)),
		})
	}
	runs := map[callKey]Run{}
	for _, r := range h.Runs {
		runs[callKey{r.Worker, r.Life, r.Number}] = r
	}
	for i, c := range h.Calls {
		id := i + 1
		run, ran := runs[callKey{c.Worker, c.Life, c.Number}]
		switch {
		case ran:
			add(c, take, id, c.Asked, run.Begin)
			add(c, free, id, run.End, run.End+until)
		case c.Result == Busy:
			add(c, refused, id, c.Asked, c.Returned)
		default:
			returned := c.Returned
			if returned == 0 {
				returned, _ = h.killed(c.Worker, c.Asked)
			}
			add(c, perhaps, id, c.Asked, returned+h.MaxFault)
			add(c, gone, id, c.Asked, returned+until)
		}
	}
	switch porcupine.CheckOperationsTimeout(lockModel.ToModel(), ops, linearTimeout) {
	case porcupine.Ok:
		return linear
	case porcupine.Illegal:
		return notLinear
	}
	return undecided
}
