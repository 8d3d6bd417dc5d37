package referee

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// History is what the records come to: runs, faults and all else.
type History struct {
	Setting
	Runs   []Run // by Begin
	Calls  []Call
	Faults []Span
	Healed time.Duration // no fault from here on; 0 if the proof did not get so far
	End    time.Duration
	others []Record // what tells of neither a call nor a fault
}

// Call is one call of ExecuteWithinLock.
type Call struct {
	Worker, Life, Number int
	Asked, Returned      time.Duration // Returned is 0 for a call cut off by a kill
	Runs                 int           // how many times fn was called
	OutcomeRan           bool
	Result, Reason       string
	Text                 string
	fnErr                string // what fn returned
}

// Run is one run of a closure. Its interval is what the promise is about: it ends when fn returns, at the end of the
// lease's validity, or with its process, whichever comes first.
type Run struct {
	*Call
	Begin, End time.Duration // the interval
	ValidUntil time.Duration // the end of the lease's validity, as far as the answers of the stores that reached the worker say
	FnEnd      time.Duration // when fn returned; 0 if it never did
	Killed     bool
	Granted    bool // a store had confirmed the claim before it began
	Store      string
	Fence      int64
}

// late reports whether the process was stopped after it had got the lock, and fn began when the lease was over already.
func (r Run) late() bool { return r.ValidUntil < r.Begin }

// Span is a fault.
type Span struct {
	ID       int
	Kind     string
	Worker   int // 0: all
	Store    string
	From, To time.Duration
	Text     string
}

// meets reports whether s lasts at some moment between from and to.
func (s Span) meets(from, to time.Duration) bool { return s.From <= to && s.To >= from }

type callKey struct{ worker, life, call int }

// building is the state of New.
type building struct {
	h         *History
	confirmed map[callKey][]Record
	calls     map[callKey]*Call
	order     []callKey
	runs      []*Run
	byCall    map[callKey]*Run
	open      map[int]int // the ID of a fault: its place in h.Faults
}

// New puts a history together. The first record has to be the one that tells the setting.
func New(records []Record) (*History, error) {
	if len(records) == 0 || records[0].What != Began || records[0].Setting == nil {
		return nil, errors.New("the history does not begin with the setting of the proof")
	}
	b := &building{
		h:         &History{Setting: *records[0].Setting},
		confirmed: map[callKey][]Record{}, calls: map[callKey]*Call{}, byCall: map[callKey]*Run{}, open: map[int]int{},
	}
	// Workers and parent write when they can; what counts is when it was.
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	for _, r := range records {
		b.add(r)
	}
	b.finish()
	return b.h, nil
}

func (b *building) add(r Record) {
	b.h.End = max(b.h.End, r.At)
	key := callKey{r.Worker, r.Life, r.Call}
	call := b.calls[key]
	if call == nil && slices.Contains([]What{Asked, Ran, Ended, Returned}, r.What) {
		call = &Call{Worker: r.Worker, Life: r.Life, Number: r.Call, Asked: r.At}
		b.calls[key] = call
		b.order = append(b.order, key)
	}
	switch r.What {
	case Confirmed:
		b.confirmed[key] = append(b.confirmed[key], r)
	case Ran:
		call.Runs++
		run := &Run{Call: call, Begin: r.At, Store: r.Store, Fence: r.Fence}
		b.runs = append(b.runs, run)
		b.byCall[key] = run
	case Ended:
		call.fnErr = r.Text
		if run := b.byCall[key]; run != nil {
			run.FnEnd = r.At
		}
	case Returned:
		call.Returned, call.Result, call.Reason, call.OutcomeRan, call.Text = r.At, r.Result, r.Reason, r.OutcomeRan, r.Text
	case Fault:
		b.open[r.ID] = len(b.h.Faults)
		b.h.Faults = append(b.h.Faults, Span{ID: r.ID, Kind: r.Kind, Worker: r.Worker, Store: r.Store, From: r.At, To: -1, Text: r.Text})
	case Over:
		if i, ok := b.open[r.ID]; ok {
			b.h.Faults[i].To = r.At
		}
	case Healed:
		b.h.Healed = r.At
	case Crashed, Hung, Leftover:
		b.h.others = append(b.h.others, r)
	}
}

func (b *building) finish() {
	for i := range b.h.Faults {
		if b.h.Faults[i].To < 0 {
			b.h.Faults[i].To = b.h.End
		}
	}
	for _, run := range b.runs {
		key := callKey{run.Worker, run.Life, run.Number}
		for _, c := range b.confirmed[key] {
			if end, counts := b.h.validity(c); counts {
				run.ValidUntil = max(run.ValidUntil, end)
				run.Granted = run.Granted || c.At <= run.Begin
			}
		}
		run.End = run.ValidUntil
		if run.FnEnd != 0 {
			run.End = min(run.End, run.FnEnd)
		}
		if killed, ok := b.h.killed(run.Worker, run.Begin); ok && run.Returned == 0 {
			run.End, run.Killed = min(run.End, killed), true
		}
		run.End = max(run.End, run.Begin)
		b.h.Runs = append(b.h.Runs, *run)
	}
	for _, key := range b.order {
		b.h.Calls = append(b.h.Calls, *b.calls[key])
	}
	slices.SortStableFunc(b.h.Runs, func(a, b Run) int { return cmp.Compare(a.Begin, b.Begin) })
}

// validity is until when an answer makes a lease valid, if it does: under MirrorSync the secondary's alone does.
//
// The worker notes the time when its handler is called, some microseconds after the Locker has; and a row is asked for
// what is left of a lease, to the millisecond rounded up. So this is a little late, by far less than the margin: no store
// gives the key to somebody else before it.
func (s Setting) validity(c Record) (end time.Duration, counts bool) {
	if s.Mode == Sync && c.Store != Secondary {
		return 0, false
	}
	return c.Sent + c.Expiry - max(c.Expiry/20, time.Millisecond), true
}

// killed is when a worker was killed next. Its process at that moment is the one it had before.
func (h *History) killed(worker int, after time.Duration) (time.Duration, bool) {
	for _, f := range h.Faults {
		if f.Kind == Kill && f.Worker == worker && f.From >= after {
			return f.From, true
		}
	}
	return h.End, false
}
