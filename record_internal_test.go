package loki

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests play every story of so many steps, from several starts, between one record and a model of its store: requests that are
// carried out late or never, answers that are lost, calls that return long after they were abandoned, a lease that is
// renewed, ends, or is kept for a minimum hold meanwhile. After each story the faults end, and the record has to become
// what it should be, for good.

const (
	storyExpiry = time.Second
	storyHold   = 1500 * time.Millisecond
	storySteps  = 5
	storySlack  = 2 * time.Millisecond // requests are rounded up to a millisecond
)

// storyHandler is never called: the story plays its part.
type storyHandler struct{ store Store }

func (storyHandler) Lock(context.Context, Claim) (bool, error) { panic("not part of the story") }
func (storyHandler) Release(context.Context, Claim) error      { panic("not part of the story") }

// storyExtender is a storyHandler that can extend and says what a release found.
type storyExtender struct{ storyHandler }

func (storyExtender) Extend(context.Context, Claim) (bool, error) { panic("not part of the story") }
func (storyExtender) ReleaseHeld(context.Context, Claim) (bool, error) {
	panic("not part of the story")
}

// storyRequest is one request on its way.
type storyRequest struct {
	pendingRequest
	answer answer
	landed bool          // the store has carried it out
	held   bool          // and answered this
	took   time.Duration // from when it was sent
	until  time.Time     // of one that failed: until when it may be carried out
}

// story is one record and its store.
type story struct {
	t     *testing.T
	ls    *Lease
	store *store
	told  []string // what happened, for the message of a failure

	ends time.Time     // the store's record; it is there until then
	took time.Duration // how long the latest request that was answered was on its way

	call      *storyRequest   // the request that has the key's turn
	abandoned []*storyRequest // those whose calls have not returned
	failed    []*storyRequest // those that failed and may be carried out yet
	renewed   bool
	slept     bool
}

// beginStory is a lease of the mode async that the primary has granted: its record in the secondary is due.
func beginStory(t *testing.T, l *Locker) *story {
	ls := l.newLease(t.Context(), request{key: "job", expiry: storyExpiry})
	s := &story{t: t, ls: ls, store: l.secondary}
	ls.authority, ls.started, ls.startedAt = Primary, true, time.Now()
	ls.used.Store(true)
	ls.primary.ends = time.Now().Add(storyExpiry)
	return s
}

// storyStep is something that may happen.
type storyStep struct {
	name string
	do   func()
}

// steps returns what may happen now, in an order that is the same in each run.
func (s *story) steps() (steps []storyStep) {
	may := func(name string, do func()) { steps = append(steps, storyStep{name, do}) }
	if s.call == nil {
		if q, ok := s.ls.nextRequest(s.store); ok { // it changes nothing that matters to ask for it
			may("request", func() { s.send(q) })
		}
	} else {
		c := s.call
		may("answer", func() { s.land(c); s.take(c, nil) })
		may("abandon", func() { s.take(c, c); s.abandoned = append(s.abandoned, c) })
		may("fail", func() { s.take(c, nil, errors.New("connection reset")) })
	}
	for i, c := range s.onTheirWay() {
		if !c.landed {
			may(fmt.Sprintf("land %d", i), func() { s.land(c) })
		}
	}
	for i, c := range s.abandoned {
		may(fmt.Sprintf("return %d", i), func() { s.comeBack(c) })
	}
	if !s.ls.over {
		if !s.renewed {
			may("renew", func() { s.renewed, s.ls.primary.ends = true, time.Now().Add(storyExpiry) })
		}
		may("end", func() { s.end(time.Time{}) })
		may("end with a hold", func() { s.end(time.Now().Add(storyHold)) })
	}
	if !s.slept {
		may("sleep", func() { s.slept = true; time.Sleep(storyExpiry / 4) })
		may("sleep longer", func() { s.slept = true; time.Sleep(storyExpiry * 5 / 4) })
	}
	return steps
}

// onTheirWay returns every request that may be carried out yet.
func (s *story) onTheirWay() []*storyRequest {
	s.failed = slices.DeleteFunc(s.failed, func(c *storyRequest) bool { return c.landed || !time.Now().Before(c.until) })
	all := slices.Concat(s.abandoned, s.failed)
	if s.call != nil {
		all = append(all, s.call)
	}
	return all
}

func (s *story) holds() bool { return s.ends.After(time.Now()) }

func (s *story) send(q pendingRequest) {
	a := answer{sent: time.Now(), expiry: q.claim.Expiry}
	if q.step == stepKeep {
		a.expiry = untilEnd(q.end)
		a.couldRecord = !q.extend || !s.store.extends()
	}
	a.weakest, a.reports = a.expiry, s.store.reports()
	s.call = &storyRequest{pendingRequest: q, answer: a}
}

// land has the store carry out a request, once.
func (s *story) land(c *storyRequest) {
	if c.landed {
		return
	}
	c.landed, c.held, c.took = true, s.holds(), time.Since(c.answer.sent)
	switch {
	case c.step == stepDrop:
		s.ends = time.Time{}
	case c.held || c.answer.couldRecord:
		c.held, s.ends = true, time.Now().Add(c.answer.expiry)
	}
}

// take ends the call of c: with the store's answer, with an error, or because it is abandoned.
func (s *story) take(c, left *storyRequest, failure ...error) {
	a := c.answer
	switch {
	case left != nil:
		a.left, a.err = []*attempt{{}}, Unavailable(context.DeadlineExceeded)
	case failure != nil:
		a.failed, a.err = true, Unavailable(failure[0])
		s.fails(c)
	default:
		a.Held, s.took = c.held, c.took
	}
	s.call = nil
	if c.step == stepKeep && !c.extend {
		s.ls.secondary.answered(a, time.Now()) // as lockReplacing does
	}
	_, owed, _ := s.ls.tookAnswer(s.store.background, c.pendingRequest, a)
	s.ls.locker.background.add(-owed)
}

// fails notes that c may be carried out as long as its claim could live.
func (s *story) fails(c *storyRequest) {
	if !c.landed {
		c.until = time.Now().Add(c.answer.expiry)
		s.failed = append(s.failed, c)
	}
}

// comeBack has an abandoned call return: well if it was carried out, else with an error.
func (s *story) comeBack(c *storyRequest) {
	s.abandoned = slices.DeleteFunc(s.abandoned, func(other *storyRequest) bool { return other == c })
	s.fails(c)
	if c.step == stepKeep { // what a late release did is what was wanted
		s.ls.returned(s.store, 1, c.answer.couldRecord, !c.landed, c.answer.expiry, c.answer.ends)
	}
}

func (s *story) end(hold time.Time) {
	s.ls.over, s.ls.hold = true, hold
	s.ls.endRecords()
}

// require fails the test with the story.
func (s *story) require(ok bool, what string) {
	s.t.Helper()
	if !ok {
		s.t.Fatalf("%s\nstory: %s\nrecord: %+v\nstore: until %v, now %v, hold %v", what, strings.Join(s.told, ", "), s.ls.secondary, s.ends, time.Now(), s.ls.hold)
	}
}

// requireValid checks that a live lease is not trusted beyond what the store holds.
func (s *story) requireValid() {
	s.t.Helper()
	if r := s.ls.secondary; !s.ls.over && r.validUntil.After(time.Now()) {
		s.require(!s.ends.Before(r.validUntil), "the record is trusted for longer than the store keeps it")
	}
}

// ending is how what is still on its way at the end of a story goes on.
type ending int

const (
	nothingLands ending = iota
	landsAtOnce
	landsBeforeTheNextLook
	endings
)

// finish ends all faults, and requires that the record becomes what it should be.
func (s *story) finish(e ending) {
	s.told = append(s.told, fmt.Sprintf("ending %d", e))
	if !s.ls.over {
		s.end(time.Time{})
	}
	if s.call != nil {
		s.land(s.call)
		s.take(s.call, nil)
	}
	settle := func(c *storyRequest) {
		if e == landsAtOnce {
			s.land(c)
		}
	}
	for _, c := range s.onTheirWay() {
		settle(c)
	}
	for len(s.abandoned) > 0 {
		s.comeBack(s.abandoned[0])
	}
	for requests := 0; ; {
		if q, ok := s.ls.nextRequest(s.store); ok {
			requests++
			s.require(requests < 50, "requests without end")
			s.send(q)
			s.land(s.call)
			s.take(s.call, nil)
			continue
		}
		_, at, settled := s.ls.needs(s.store)
		if settled {
			break
		}
		s.require(!at.IsZero(), "the record is not settled, and nothing would look at it again")
		time.Sleep(time.Until(at) - 1)
		if late := s.onTheirWay(); e == landsBeforeTheNextLook && len(late) > 0 && late[0].until.After(at) {
			s.land(late[0])
		}
		time.Sleep(time.Nanosecond)
	}
	s.requireSettled()
}

func (s *story) requireSettled() {
	s.t.Helper()
	hold, counted := s.ls.hold, s.ls.locker.background.count()-s.ls.primary.owed
	s.ls.locker.background.add(-s.ls.primary.owed) // nobody plays the primary
	s.require(counted == 0, fmt.Sprintf("Close would wait for %d requests", counted))
	s.require(s.store.background.pending.Load() == 0, "a settled record counts as one that waits for another attempt")
	if hold.After(time.Now()) {
		s.require((s.ends.Sub(hold)-s.took).Abs() <= storySlack, fmt.Sprintf("the hold is not kept exactly: it is off by %v", s.ends.Sub(hold)))
		return
	}
	s.require(!s.holds() || !hold.IsZero() && time.Until(s.ends) <= storySlack, fmt.Sprintf("the store holds the claim for %v more", time.Until(s.ends)))
}

// storyStarts are the steps that a story begins with, before all that may happen.
var storyStarts = [][]string{
	nil,
	{"request", "abandon", "end"},
	{"sleep", "request", "abandon", "renew"},
	{"request", "abandon", "end", "sleep longer"},
	{"request", "answer", "end with a hold", "request", "abandon"},
}

// everyStory plays all stories with a handler, each with every ending. It returns how many there were.
func everyStory(t *testing.T, h LockHandler) (stories int) {
	l, err := New(Config{ServiceKey: "job", Primary: storyHandler{Primary}, Secondary: h})
	require.NoError(t, err)
	for _, start := range storyStarts {
		for path := make([]int, storySteps); path != nil; {
			var width []int
			for e := range endings {
				s := beginStory(t, l)
				for _, name := range start {
					steps := s.steps()
					s.play(steps[slices.IndexFunc(steps, func(step storyStep) bool { return step.name == name })])
				}
				width = width[:0]
				for _, choice := range path {
					steps := s.steps()
					if len(steps) == 0 {
						break
					}
					width = append(width, len(steps))
					s.play(steps[choice])
				}
				s.finish(e)
				stories++
			}
			path = nextPath(path, width)
		}
	}
	return stories
}

func (s *story) play(step storyStep) {
	s.told = append(s.told, step.name)
	step.do()
	s.requireValid()
}

// nextPath returns the path after one at whose steps there were width ways to go on, nil after the last.
func nextPath(path, width []int) []int {
	next := slices.Clone(path)
	for i := len(width) - 1; i >= 0; i-- {
		if next[i]++; next[i] < width[i] {
			return next
		}
		next[i] = 0
	}
	return nil
}

func TestRecordEndsAsWantedInEveryStory(t *testing.T) {
	for name, h := range map[string]LockHandler{"a handler of two methods": storyHandler{Secondary}, "an extender": storyExtender{}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stories := everyStory(t, h)
				require.Greater(t, stories, 1000)
				t.Logf("%d stories", stories)
			})
		})
	}
}
