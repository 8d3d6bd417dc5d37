package referee

import (
	"slices"
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

// A lock is a register that names its holder. What a call does to it:
type action int

const (
	take    action = iota // it got the lock
	refused               // it was told "busy"
	perhaps               // its outcome is unknown: it may have recorded its claim
)

type operation struct {
	action   action
	call     int           // whose claim; from 1
	from, to time.Duration // as porcupine has it
}

// hold is when the claim of a call is in the store, if it is.
type hold struct {
	from   time.Duration // not before then
	surely time.Duration // it is there until then, if it is a run's
	until  time.Duration // it is gone from then on
}

// lockModel has 0 for a lock that nobody has claimed yet as its state, else the call that claimed it last. That a claim
// ends is no operation, since the search would try each moment for it: who needs it gone, or still there, looks whether it
// can be. The model is not deterministic because nobody knows of a request without an answer whether it was carried out.
func lockModel(holds []hold) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, input, _ any) []any {
			holder, op := state.(int), input.(operation)
			free := holds[holder].surely <= op.to
			switch {
			case op.action == take && free:
				return []any{op.call}
			case op.action == refused && holder != 0 && holds[holder].until >= op.from:
				return []any{holder}
			case op.action == perhaps && free:
				return []any{holder, op.call}
			case op.action == perhaps:
				return []any{holder}
			}
			return nil
		},
	}
	return m.ToModel()
}

// linear looks for an order of all calls that explains what each of them returned.
//
// A claim may stay in the store after its lease is over: the release may have failed, or a renewal may still be on its
// way. But a fault ends, and the expiry passes, and then it is gone: until is that bound. A slow machine makes some faults
// longer than they were to be.
//
// What cannot matter is left out, or a long proof would take for ever to check: a refusal while somebody certainly held
// the lock, and a call of unknown outcome whose claim could not have been the reason of any other refusal.
func (h *History) linear() string {
	longest := h.MaxFault
	for _, f := range h.Faults {
		longest = max(longest, f.To-f.From)
	}
	until := longest + 3*h.Expiry
	var ops []porcupine.Operation
	add := func(a action, call int, from, to time.Duration) {
		to = max(to, from)
		ops = append(ops, porcupine.Operation{
			// The calls of one process come one after the other, but what becomes of their claims does not: each
			// operation has a client of its own.
			ClientId: len(ops), Input: operation{a, call, from, to}, Call: int64(from), Return: int64(to),
		})
	}
	runs := map[callKey]Run{}
	for _, r := range h.Runs {
		runs[callKey{r.Worker, r.Life, r.Number}] = r
	}
	holds := make([]hold, len(h.Calls)+1) // the first one is nobody's
	open := h.unexplained(runs)
	for i, c := range h.Calls {
		id := i + 1
		run, ran := runs[callKey{c.Worker, c.Life, c.Number}]
		switch {
		case ran:
			end := min(run.End, run.ValidUntil)
			holds[id] = hold{c.Asked, end, end + until}
			add(take, id, c.Asked, min(run.Begin, end))
		case c.Result == Busy:
			if slices.Contains(open, c) {
				add(refused, id, c.Asked, c.Returned)
			}
		default:
			returned := c.Returned
			if returned == 0 {
				returned, _ = h.killed(c.Worker, c.Asked)
			}
			holds[id] = hold{from: c.Asked, until: returned + until}
			if slices.ContainsFunc(open, func(b Call) bool { return b.Asked <= returned+until && b.Returned >= c.Asked }) {
				add(perhaps, id, c.Asked, returned+longest)
			}
		}
	}
	if h.contradicted(holds, open) {
		return notLinear
	}
	switch porcupine.CheckOperationsTimeout(lockModel(holds), ops, linearTimeout) {
	case porcupine.Ok:
		return linear
	case porcupine.Illegal:
		return notLinear
	}
	return undecided
}

// contradicted finds what needs no search, which takes for ever where there is nothing to be found: two that certainly held
// at once, and a refusal for which there is no reason at all.
func (h *History) contradicted(holds []hold, open []Call) bool {
	held := time.Duration(0)
	for _, r := range h.Runs { // by Begin
		if r.late() {
			continue
		}
		if held > r.Begin {
			return true
		}
		held = max(held, r.End)
	}
	return slices.ContainsFunc(open, func(b Call) bool {
		return !slices.ContainsFunc(holds[1:], func(c hold) bool { return c.from <= b.Returned && c.until >= b.Asked })
	})
}

// unexplained is the calls that were refused at no moment at which somebody certainly held the lock: as long as fn runs
// inside its validity, whenever the claim was recorded and released.
func (h *History) unexplained(runs map[callKey]Run) []Call {
	var found []Call
	for _, c := range h.Calls {
		_, ran := runs[callKey{c.Worker, c.Life, c.Number}]
		held := func(r Run) bool { return !r.late() && r.Begin <= c.Returned && r.End >= c.Asked }
		if c.Result == Busy && !ran && !slices.ContainsFunc(h.Runs, held) {
			found = append(found, c)
		}
	}
	return found
}
