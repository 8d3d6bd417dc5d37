package referee

import (
	"fmt"
	"slices"
	"time"
)

// Breach is a broken promise.
type Breach struct {
	At   time.Duration
	Rule string // which one, in a word or two
	Text string
}

// Verdict is what the referee has to say.
type Verdict struct {
	Setting   Setting
	Length    time.Duration
	Results   map[string]int // of calls
	Cut       int            // calls that a kill cut off
	Runs      int
	Faults    map[string]int
	Overlaps  []Overlap
	Longest   time.Duration // of the overlaps
	Covered   time.Duration // the longest of what is covered by the mode's bound
	Breaches  []Breach
	Linear    string // what the check for linearizability came to; empty if there was none
	Leftovers int
}

// Kept reports whether no promise was broken.
func (v *Verdict) Kept() bool { return len(v.Breaches) == 0 }

func (v *Verdict) breach(at time.Duration, rule, format string, args ...any) {
	v.Breaches = append(v.Breaches, Breach{At: at, Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// Judge says what a history proves.
func Judge(h *History) *Verdict {
	v := &Verdict{Setting: h.Setting, Length: h.End, Results: map[string]int{}, Faults: map[string]int{}, Runs: len(h.Runs)}
	for _, f := range h.Faults {
		v.Faults[f.Kind]++
	}
	for _, c := range h.Calls {
		if c.Returned == 0 {
			v.Cut++
			continue
		}
		v.Results[c.Result]++
		v.judgeCall(c)
	}
	for _, r := range h.Runs {
		v.judgeRun(h, r)
	}
	v.judgeFences(h)
	v.Overlaps = h.overlaps()
	for _, o := range v.Overlaps {
		v.Longest, v.Covered = max(v.Longest, o.Length()), max(v.Covered, o.Covered)
		if o.Broken != "" {
			v.breach(o.From, "overlap", "%s: %s", o, o.Broken)
		}
	}
	for _, r := range h.others {
		switch r.What {
		case Leftover:
			v.Leftovers++
			who := "the " + r.Store
			if h.Quorum > 0 && r.Store != Secondary {
				who = r.Store + " of the quorum"
			}
			v.breach(r.At, "leftover", "%s keeps a claim although every lease is over: %s", who, r.Text)
		case Hung:
			v.breach(r.At, "hung", "worker %d did not end when it was asked to", r.Worker)
		case Crashed:
			v.breach(r.At, "crashed", "worker %d ended by itself: %s", r.Worker, r.Text)
		}
	}
	if h.Healed > 0 && !slices.ContainsFunc(h.Runs, func(r Run) bool { return r.Begin > h.Healed }) {
		v.breach(h.Healed, "stuck", "nobody got the lock any more after all faults were over")
	}
	if h.Mode == Alone && h.keeps() {
		v.Linear = h.linear()
		if v.Linear == notLinear {
			v.breach(0, "linearizable", "no order of the calls explains what they returned")
		}
	}
	slices.SortStableFunc(v.Breaches, func(a, b Breach) int { return int(a.At - b.At) })
	return v
}

// judgeCall compares what the caller was told with what happened.
func (v *Verdict) judgeCall(c Call) {
	who := fmt.Sprintf("worker %d's call at %v", c.Worker, round(c.Asked))
	switch c.Result {
	case OK, Own, Lost:
		if c.Runs == 0 {
			v.breach(c.Returned, "lie", "%s returned %q although fn did not run: %s", who, c.Result, c.Text)
		}
	case Busy, Unavailable, CtxEnded:
		if c.Runs > 0 {
			v.breach(c.Returned, "lie", "%s returned %q although fn ran: %s", who, c.Result, c.Text)
		}
	case Refused:
		v.breach(c.Returned, "mistake", "%s came back as somebody's mistake, and there was none: %s", who, c.Text)
	default:
		v.breach(c.Returned, "lie", "%s returned what is in no table: %s", who, c.Text)
	}
	if c.Runs > 1 {
		v.breach(c.Returned, "twice", "%s ran fn %d times", who, c.Runs)
	}
	if c.OutcomeRan != (c.Runs > 0) {
		v.breach(c.Returned, "lie", "%s ran fn %d times, and its Outcome.Ran is %v", who, c.Runs, c.OutcomeRan)
	}
	if c.fnErr == "" && c.Result == Own || c.fnErr != "" && c.Result == OK {
		v.breach(c.Returned, "lie", "%s returned %q, and fn had returned %q", who, c.Result, c.fnErr)
	}
}

func (v *Verdict) judgeRun(h *History, r Run) {
	who := fmt.Sprintf("worker %d's run at %v", r.Worker, round(r.Begin))
	if !r.Granted {
		v.breach(r.Begin, "unprotected", "%s began before a store that counts had confirmed its claim", who)
		return
	}
	stopped := slices.ContainsFunc(h.Faults, func(s Span) bool {
		return s.Kind == Stop && s.Worker == r.Worker && s.meets(r.Asked, r.Begin)
	})
	if r.Begin > r.ValidUntil && !stopped {
		v.breach(r.Begin, "unprotected", "%s began %v after its lease was over", who, round(r.Begin-r.ValidUntil))
	}
	if r.FnEnd > r.ValidUntil && r.Returned != 0 && r.Result != Lost {
		v.breach(r.FnEnd, "silent", "%s ended %v after its lease was over, and its caller was told %q", who, round(r.FnEnd-r.ValidUntil), r.Result)
	}
	if r.Fence <= 0 && h.fences(h.numbering(r)) {
		v.breach(r.Begin, "fence", "%s has no fence, and its store issues them", who)
	}
}

// numbering is the store whose fence a run has: under MirrorSync every fence is the secondary's.
func (s Setting) numbering(r Run) string {
	if s.Mode == Sync {
		return Secondary
	}
	return r.Store
}

// judgeFences compares each fence with those of the same store that had been granted before it was asked for.
func (v *Verdict) judgeFences(h *History) {
	type seen struct{ largest Run }
	stores := map[string]*seen{}
	asked := slices.Clone(h.Runs)
	slices.SortStableFunc(asked, func(a, b Run) int { return int(a.Asked - b.Asked) })
	next := 0 // of h.Runs, by Begin
	for _, r := range asked {
		for ; next < len(h.Runs) && h.Runs[next].Begin < r.Asked; next++ {
			earlier := h.Runs[next]
			s := stores[h.numbering(earlier)]
			if s == nil {
				s = &seen{}
				stores[h.numbering(earlier)] = s
			}
			if earlier.Fence > s.largest.Fence {
				s.largest = earlier
			}
		}
		if s := stores[h.numbering(r)]; s != nil && h.fences(h.numbering(r)) && r.Fence <= s.largest.Fence {
			v.breach(r.Begin, "fence", "worker %d's run at %v has the fence %d of the %s, and worker %d's at %v had %d before it",
				r.Worker, round(r.Begin), r.Fence, h.numbering(r), s.largest.Worker, round(s.largest.Begin), s.largest.Fence)
		}
	}
}
