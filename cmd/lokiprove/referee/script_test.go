package referee_test

// This file is how the tests write histories.

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

const (
	ms     = time.Millisecond
	expiry = time.Second
	margin = expiry / 20
)

// script is a history written by hand. Each run is the only call of a worker's process unless it says otherwise.
type script struct {
	setting referee.Setting
	records []referee.Record
	fences  int64
	calls   int
}

func newScript(mode string) *script {
	return &script{setting: referee.Setting{Mode: mode, Expiry: expiry, Workers: 3, Lossy: true, MaxFault: 3 * expiry}, fences: 100}
}

func (s *script) add(at time.Duration, r referee.Record) {
	r.At = at
	s.records = append(s.records, r)
}

// run is a call whose fn runs from begin to end, renewed as it should be. change may spoil any of its records.
func (s *script) run(worker int, begin, end time.Duration, change ...func(*referee.Record)) {
	s.calls++
	s.fences++
	add := func(at time.Duration, r referee.Record) {
		r.Worker, r.Life, r.Call = worker, 1, s.calls
		for _, f := range change {
			f(&r)
		}
		if r.What != "" {
			s.add(at, r)
		}
	}
	add(begin-5*ms, referee.Record{What: referee.Asked})
	for at := begin - 2*ms; at < end; at += expiry / 3 {
		for _, store := range []string{referee.Primary, referee.Secondary} {
			add(at+ms, referee.Record{What: referee.Confirmed, Store: store, Sent: at, Expiry: expiry})
		}
	}
	add(begin, referee.Record{What: referee.Ran, Store: referee.Primary, Fence: s.fences})
	add(end, referee.Record{What: referee.Ended})
	add(end+ms, referee.Record{What: referee.Returned, Result: referee.OK, OutcomeRan: true})
}

// call is one that did not run fn.
func (s *script) call(worker int, asked time.Duration, result string) {
	s.calls++
	s.add(asked, referee.Record{What: referee.Asked, Worker: worker, Life: 1, Call: s.calls})
	s.add(asked+ms, referee.Record{What: referee.Returned, Worker: worker, Life: 1, Call: s.calls, Result: result, Text: "words"})
}

func (s *script) fault(kind, store string, worker int, from, to time.Duration) {
	id := len(s.records)
	s.add(from, referee.Record{What: referee.Fault, ID: id, Kind: kind, Store: store, Worker: worker})
	s.add(to, referee.Record{What: referee.Over, ID: id})
}

func (s *script) judge(t *testing.T) *referee.Verdict {
	t.Helper()
	h, err := referee.New(append([]referee.Record{{What: referee.Began, Setting: &s.setting}}, s.records...))
	require.NoError(t, err)
	return referee.Judge(h)
}

// on changes the records that tell a thing.
func on(what referee.What, change func(*referee.Record)) func(*referee.Record) {
	return func(r *referee.Record) {
		if r.What == what {
			change(r)
		}
	}
}

func result(result string) func(*referee.Record) {
	return on(referee.Returned, func(r *referee.Record) { r.Result = result })
}

func fence(n int64) func(*referee.Record) {
	return on(referee.Ran, func(r *referee.Record) { r.Fence = n })
}

// quorum has a script play with a quorum for its primary.
func quorum(play func(*script)) func(*script) {
	return func(s *script) {
		s.setting.Quorum = 3
		play(s)
	}
}

// without leaves out what is told after a moment at which the process could not tell any more.
func without(what ...referee.What) func(*referee.Record) {
	return func(r *referee.Record) {
		if slices.Contains(what, r.What) {
			r.What = ""
		}
	}
}

// noRenewal leaves a run with what it was granted.
func noRenewal(begin time.Duration) func(*referee.Record) {
	return on(referee.Confirmed, func(r *referee.Record) {
		if r.Sent > begin {
			r.What = ""
		}
	})
}
