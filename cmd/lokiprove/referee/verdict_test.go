package referee_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// A referee that cannot fail is worthless: each history here breaks one promise, and beside it is the one that comes
// closest to it and does not.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name string
		mode string
		play func(*script)
		rule string // the only one that is broken; empty if none is
	}{
		{"one after the other", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 900*ms)
			s.run(2, 910*ms, 5*time.Second)
			s.call(3, 2*time.Second, referee.Busy)
			s.call(3, 3*time.Second, referee.Unavailable)
			s.call(3, 4*time.Second, referee.CtxEnded)
		}, ""},
		{"two at once, sync", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 900*ms)
			s.run(2, 899*ms, 5*time.Second)
		}, "overlap"},
		{"two at once, sync, after the primary forgot", referee.Sync, func(s *script) {
			s.fault(referee.Restart, "", 0, 200*ms, 300*ms)
			s.run(1, 100*ms, 900*ms)
			s.run(2, 600*ms, 5*time.Second, result(referee.Lost))
		}, "overlap"},
		{"two at once, async, within the bound", referee.Async, func(s *script) {
			s.run(1, 100*ms, 2400*ms)
			s.run(2, 400*ms, 2500*ms, result(referee.Lost))
		}, ""},
		{"two at once, async, for longer", referee.Async, func(s *script) {
			s.run(1, 100*ms, 2500*ms)
			s.run(2, 400*ms, 2500*ms, result(referee.Lost))
		}, "overlap"},
		{"two at once, async, for longer, one cut off", referee.Async, func(s *script) {
			s.fault(referee.Cut, referee.Secondary, 3, 1000*ms, 1500*ms)
			s.run(1, 100*ms, 2500*ms)
			s.run(2, 400*ms, 2500*ms, result(referee.Lost))
		}, ""},
		{"two at once, async, for longer, one stopped", referee.Async, func(s *script) {
			s.fault(referee.Stop, "", 1, 1000*ms, 1500*ms)
			s.run(1, 100*ms, 2500*ms)
			s.run(2, 400*ms, 2500*ms, result(referee.Lost))
		}, ""},
		{"two at once, async, for longer, one cut off from the primary", referee.Async, func(s *script) {
			s.fault(referee.Cut, referee.Primary, 3, 1000*ms, 1500*ms)
			s.run(1, 100*ms, 2500*ms)
			s.run(2, 400*ms, 2500*ms, result(referee.Lost))
		}, "overlap"},
		{"two at once, async, and nobody was told", referee.Async, func(s *script) {
			s.run(1, 100*ms, 1500*ms)
			s.run(2, 400*ms, 1500*ms)
		}, "overlap"},
		{"two at once, async, too short to be told", referee.Async, func(s *script) {
			s.run(1, 100*ms, 1350*ms)
			s.run(2, 400*ms, 1350*ms)
		}, ""},
		{"two at once, alone", referee.Alone, func(s *script) {
			s.run(1, 100*ms, 900*ms)
			s.run(2, 899*ms, 5*time.Second)
		}, "overlap"},
		{"two at once, alone, after it forgot", referee.Alone, func(s *script) {
			s.fault(referee.Promote, "", 0, 200*ms, 600*ms)
			s.run(1, 100*ms, 1500*ms, result(referee.Lost))
			s.run(2, 610*ms, 5*time.Second)
		}, ""},
		{"two at once, alone, after it forgot, for longer", referee.Alone, func(s *script) {
			s.fault(referee.Promote, "", 0, 200*ms, 600*ms)
			s.run(1, 100*ms, 1700*ms, result(referee.Lost))
			s.run(2, 610*ms, 5*time.Second)
		}, "overlap"},
		{"two at once, alone, before it forgot", referee.Alone, func(s *script) {
			s.fault(referee.Restart, "", 0, 910*ms, 1500*ms)
			s.run(1, 100*ms, 900*ms)
			s.run(2, 899*ms, 5*time.Second)
		}, "overlap"},
		{"one after the other, a quorum", referee.Alone, quorum(func(s *script) {
			s.fault(referee.Restart, referee.Server(2), 0, 200*ms, 600*ms)
			s.run(1, 100*ms, 900*ms, fence(0))
			s.run(2, 910*ms, 5*time.Second, fence(0))
		}), ""},
		{"killed, and the next one when its claim has expired", referee.Sync, func(s *script) {
			s.fault(referee.Kill, "", 1, 500*ms, 600*ms)
			s.run(1, 100*ms, 5*time.Second, noRenewal(100*ms), without(referee.Ended, referee.Returned))
			s.run(2, 98*ms+expiry, 5*time.Second)
		}, ""},
		{"killed after the next one had begun", referee.Sync, func(s *script) {
			s.fault(referee.Kill, "", 1, 500*ms, 600*ms)
			s.run(1, 100*ms, 5*time.Second, noRenewal(100*ms), without(referee.Ended, referee.Returned))
			s.run(2, 499*ms, 5*time.Second)
		}, "overlap"},
		{"stopped past its validity", referee.Sync, func(s *script) {
			s.fault(referee.Stop, "", 1, 200*ms, 2*time.Second)
			s.run(1, 100*ms, 2001*ms, noRenewal(100*ms), result(referee.Lost))
			s.run(2, 98*ms+expiry-margin, 5*time.Second)
		}, ""},
		{"stopped, and the next one inside its validity", referee.Sync, func(s *script) {
			s.fault(referee.Stop, "", 1, 200*ms, 2*time.Second)
			s.run(1, 100*ms, 2001*ms, noRenewal(100*ms), result(referee.Lost))
			s.run(2, 97*ms+expiry-margin, 5*time.Second)
		}, "overlap"},
		{"fn outlived its lease and nobody was told", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 100*ms+expiry, noRenewal(100*ms))
		}, "silent"},
		{"fn outlived its lease", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 100*ms+expiry, noRenewal(100*ms), result(referee.Lost))
		}, ""},
		{"under MirrorSync the primary protects nothing", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 500*ms, on(referee.Confirmed, func(r *referee.Record) { r.Store = referee.Primary }))
		}, "unprotected"},
		{"began after its lease was over", referee.Sync, func(s *script) {
			s.run(1, 2*time.Second, 2100*ms, result(referee.Lost), on(referee.Confirmed, func(r *referee.Record) { r.Sent = time.Second }))
		}, "unprotected"},
		{"busy, and ran", referee.Async, func(s *script) { s.run(1, 100*ms, 500*ms, result(referee.Busy)) }, "lie"},
		{"unavailable, and ran", referee.Async, func(s *script) { s.run(1, 100*ms, 500*ms, result(referee.Unavailable)) }, "lie"},
		{"ok, and did not run", referee.Async, func(s *script) { s.call(1, 100*ms, referee.OK) }, "lie"},
		{"lost, and did not run", referee.Async, func(s *script) { s.call(1, 100*ms, referee.Lost) }, "lie"},
		{"what is in no table", referee.Async, func(s *script) { s.call(1, 100*ms, referee.Other) }, "lie"},
		{"the outcome says it did not run", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms, on(referee.Returned, func(r *referee.Record) { r.OutcomeRan = false }))
		}, "lie"},
		{"its own error came back", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms, on(referee.Ended, func(r *referee.Record) { r.Text = "mine" }), result(referee.Own))
		}, ""},
		{"its own error did not come back", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms, on(referee.Ended, func(r *referee.Record) { r.Text = "mine" }))
		}, "lie"},
		{"an outage came back as a mistake", referee.Async, func(s *script) { s.call(1, 100*ms, referee.Refused) }, "mistake"},
		{"run twice by one call", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms)
			s.add(150*ms, referee.Record{What: referee.Ran, Worker: 1, Life: 1, Call: s.calls, Store: referee.Primary, Fence: 200})
		}, "twice"},
		{"a fence that shrinks", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms)
			s.fences = 50
			s.run(2, 600*ms, 700*ms)
		}, "fence"},
		{"a fence of another store", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms)
			s.fences = 50
			s.run(2, 600*ms, 700*ms, on(referee.Ran, func(r *referee.Record) { r.Store = referee.Secondary }))
		}, ""},
		{"under MirrorSync every fence is the secondary's", referee.Sync, func(s *script) {
			s.run(1, 100*ms, 500*ms)
			s.fences = 50
			s.run(2, 600*ms, 700*ms, on(referee.Ran, func(r *referee.Record) { r.Store = referee.Secondary }))
		}, "fence"},
		{"no fence", referee.Async, func(s *script) {
			s.run(1, 100*ms, 500*ms, on(referee.Ran, func(r *referee.Record) { r.Fence = 0 }))
		}, "fence"},
		{"no fence of a quorum", referee.Async, quorum(func(s *script) { s.run(1, 100*ms, 500*ms, fence(0)) }), ""},
		{"a fence of a quorum that shrinks", referee.Async, quorum(func(s *script) {
			s.run(1, 100*ms, 500*ms, fence(100))
			s.run(2, 600*ms, 700*ms, fence(50))
		}), ""},
		{"no fence of the secondary of a quorum", referee.Async, quorum(func(s *script) {
			s.run(1, 100*ms, 500*ms, fence(0), on(referee.Ran, func(r *referee.Record) { r.Store = referee.Secondary }))
		}), "fence"},
		{"no fence under MirrorSync with a quorum", referee.Sync, quorum(func(s *script) { s.run(1, 100*ms, 500*ms, fence(0)) }), "fence"},
		{"a key left behind on a minority of a quorum", referee.Alone, quorum(func(s *script) {
			s.add(9*time.Second, referee.Record{What: referee.Leftover, Store: referee.Server(2), Text: "a key"})
		}), "leftover"},
		{"a key left behind", referee.Async, func(s *script) {
			s.add(9*time.Second, referee.Record{What: referee.Leftover, Store: referee.Primary, Text: "a key"})
		}, "leftover"},
		{"a worker that does not end", referee.Async, func(s *script) { s.add(time.Second, referee.Record{What: referee.Hung, Worker: 1}) }, "hung"},
		{"a worker that crashes", referee.Async, func(s *script) { s.add(time.Second, referee.Record{What: referee.Crashed, Worker: 1}) }, "crashed"},
		{"nobody runs after the healing", referee.Async, func(s *script) {
			s.run(1, 100*ms, 900*ms)
			s.add(time.Second, referee.Record{What: referee.Healed})
		}, "stuck"},
		{"somebody runs after the healing", referee.Async, func(s *script) {
			s.run(1, 1100*ms, 1900*ms)
			s.add(time.Second, referee.Record{What: referee.Healed})
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(c.mode)
			c.play(s)
			v := s.judge(t)
			if c.rule == "" {
				require.Empty(t, v.Breaches)
				require.True(t, v.Kept())
				return
			}
			require.False(t, v.Kept())
			for _, b := range v.Breaches {
				require.Equal(t, c.rule, b.Rule, b.Text)
			}
		})
	}
}

func TestOverlapsThatBreakNothingAreCounted(t *testing.T) {
	s := newScript(referee.Async)
	s.fault(referee.Cut, referee.Secondary, 3, 500*ms, 2500*ms)
	s.run(1, 100*ms, 3*time.Second)
	s.run(2, 400*ms, 2600*ms, result(referee.Lost))
	v := s.judge(t)
	require.Empty(t, v.Breaches)
	require.Len(t, v.Overlaps, 1)
	require.Equal(t, 2200*ms, v.Longest)
	require.Equal(t, 100*ms, v.Covered)
}

// A history is the same after it has been to a file, in whatever order its records were written.
func TestRead(t *testing.T) {
	s := newScript(referee.Async)
	s.fault(referee.Cut, referee.Secondary, 3, 500*ms, 2500*ms)
	s.run(1, 100*ms, 3*time.Second)
	s.run(2, 400*ms, 2600*ms, result(referee.Lost))
	want := s.judge(t)

	slices.Reverse(s.records)
	var file bytes.Buffer
	for _, r := range s.records {
		require.NoError(t, json.NewEncoder(&file).Encode(r))
	}
	var err error
	s.records, err = referee.Read(&file)
	require.NoError(t, err)
	require.Equal(t, want, s.judge(t))
}
