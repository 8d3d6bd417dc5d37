package referee

import (
	"fmt"
	"slices"
	"time"
)

// Overlap is two closures of one key that ran at once.
type Overlap struct {
	A, B     Run // B began later
	From, To time.Duration

	// Covered is the longest part of it for which the mode promises a bound: none of it under MirrorSync's zero, or
	// with one store that has kept its keys; under MirrorAsync, while everybody reached the secondary.
	Covered time.Duration

	Broken string // why it breaks a promise; empty if it does not
}

// Length is how long both ran.
func (o Overlap) Length() time.Duration { return o.To - o.From }

func (o Overlap) String() string {
	return fmt.Sprintf("worker %d and worker %d ran at once for %v, from %v on", o.A.Worker, o.B.Worker,
		round(o.Length()), round(o.From))
}

// grace is how long the secondary may refuse a mirror write before that is a conflict, as docs/guarantees.md has it.
const grace = 250 * time.Millisecond

// Bound is the longest overlap that the mode allows in what it covers.
//
// Under MirrorAsync, once everybody reaches the secondary: a mirror write that was given to a link when that was broken
// has up to its expiry to come back, is due again after a third of that, and is refused for the grace. A half of the
// expiry instead of a third leaves some time for the machine. With one store that has forgotten: what is left of the
// validity of the lease that it has forgotten.
func (s Setting) Bound() time.Duration {
	switch s.Mode {
	case Async:
		return s.Expiry + s.Expiry/2 + 2*grace
	case Alone:
		if !s.keeps() {
			return s.Expiry
		}
	}
	return 0
}

// overlaps finds every two runs at once.
func (h *History) overlaps() []Overlap {
	fine := h.secondaryFine()
	var found []Overlap
	var current []Run
	for _, b := range h.Runs {
		current = slices.DeleteFunc(current, func(a Run) bool { return a.End <= b.Begin })
		for _, a := range current {
			if b.End <= b.Begin {
				continue
			}
			o := Overlap{A: a, B: b, From: b.Begin, To: min(a.End, b.End)}
			h.judge(&o, fine)
			found = append(found, o)
		}
		current = append(current, b)
	}
	return found
}

func (h *History) judge(o *Overlap, fine []Span) {
	switch h.Mode {
	case Async:
		for _, f := range fine {
			o.Covered = max(o.Covered, min(o.To, f.To)-max(o.From, f.From))
		}
		switch bound := h.Bound(); {
		case o.Covered > bound:
			o.Broken = fmt.Sprintf("for %v of that everybody reached the secondary, and the bound is %v", round(o.Covered), bound)
		case o.Covered > h.Expiry && o.A.Returned != 0 && o.B.Returned != 0 && o.A.Result != Lost && o.B.Result != Lost:
			o.Broken = fmt.Sprintf("for %v of that everybody reached the secondary, so that one of the mirror writes was refused, "+
				"and neither caller was told: %s, %s", round(o.Covered), o.A.Result, o.B.Result)
		}
	case Sync:
		o.Covered = o.Length()
		o.Broken = "under MirrorSync no two ever do"
	case Alone:
		o.Covered = o.Length()
		switch {
		case h.Quorum > 0:
			o.Broken = "a majority of the quorum had kept its keys"
		case !h.forgot(o.A.Asked, o.B.Begin):
			o.Broken = "the primary had kept its keys"
		case o.Covered > h.Bound():
			o.Broken = fmt.Sprintf("the primary had forgotten the first, but its validity is shorter than %v", h.Bound())
		}
	}
}

// forgot reports whether the primary may have lost a claim between two moments.
func (h *History) forgot(from, to time.Duration) bool {
	return slices.ContainsFunc(h.Faults, func(s Span) bool {
		return (s.Kind == Restart || s.Kind == Promote) && s.meets(from, to)
	})
}

// secondaryFine is when everybody reached the secondary. A stopped process does not, and a killed one need not.
func (h *History) secondaryFine() []Span {
	var broken []Span
	for _, f := range h.Faults {
		if f.Kind == Stop || f.Store == Secondary && f.To > f.From {
			broken = append(broken, f)
		}
	}
	slices.SortFunc(broken, func(a, b Span) int { return int(a.From - b.From) })
	var fine []Span
	from := time.Duration(0)
	for _, f := range broken {
		if f.From > from {
			fine = append(fine, Span{From: from, To: f.From})
		}
		from = max(from, f.To)
	}
	return append(fine, Span{From: from, To: max(from, h.End)})
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
