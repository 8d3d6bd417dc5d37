package referee_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

func TestLinearizability(t *testing.T) {
	s := newScript(referee.Alone)
	s.setting.Lossy = false
	s.run(1, 100*ms, 900*ms)
	s.call(2, 500*ms, referee.Busy)
	s.call(2, time.Second, referee.Unavailable)
	s.run(3, 20*time.Second, 21*time.Second)
	s.call(1, 20*time.Second+500*ms, referee.Busy)
	v := s.judge(t)
	require.Empty(t, v.Breaches)
	require.Equal(t, "linearizable", v.Linear)

	s.call(2, 10*time.Second, referee.Busy) // although everything that was ever claimed is over
	v = s.judge(t)
	require.Len(t, v.Breaches, 1)
	require.Equal(t, "linearizable", v.Breaches[0].Rule)
}

// Each of many calls of unknown outcome may have been the reason of a refusal, and the claim of each run that was lost may
// have stayed for a while. That is to be decided all the same.
func TestLinearizabilityOfALongProof(t *testing.T) {
	for wrong, linear := range map[bool]string{false: "linearizable", true: "not linearizable"} {
		s := newScript(referee.Alone)
		s.setting.Lossy = false
		for round := range 40 {
			at := time.Duration(round) * 4 * expiry
			s.run(1, at+100*ms, at+expiry, result(referee.Lost))
			for i := range 6 {
				later := at + expiry + time.Duration(200*i)*ms
				s.call(2, later+100*ms, referee.Unavailable)
				s.call(3, later+200*ms, referee.Busy)
			}
		}
		if wrong {
			s.run(1, 200*expiry, 201*expiry)
			s.call(2, 200*expiry-20*ms, referee.Busy)
		}
		require.Equal(t, linear, s.judge(t).Linear)
	}
}

// What was stopped until its lease was over, and then began, does not hold while the next one does.
func TestLinearizabilityOfARunThatBeganTooLate(t *testing.T) {
	s := newScript(referee.Alone)
	s.setting.Lossy = false
	s.fault(referee.Stop, "", 1, 100*ms, 3*time.Second)
	add := func(at time.Duration, r referee.Record) {
		r.Worker, r.Life, r.Call, r.Store = 1, 1, 1, referee.Primary
		s.add(at, r)
	}
	add(90*ms, referee.Record{What: referee.Asked})
	add(99*ms, referee.Record{What: referee.Confirmed, Sent: 95 * ms, Expiry: expiry})
	add(3000*ms, referee.Record{What: referee.Ran, Fence: 1})
	add(3100*ms, referee.Record{What: referee.Ended})
	add(3101*ms, referee.Record{What: referee.Returned, Result: referee.Lost, OutcomeRan: true})
	s.run(2, 1500*ms, 4*time.Second)
	v := s.judge(t)
	require.Empty(t, v.Breaches)
	require.Equal(t, "linearizable", v.Linear)
}

// A majority of a quorum keeps its keys although each of its servers may forget.
func TestLinearizabilityOfAQuorum(t *testing.T) {
	s := newScript(referee.Alone)
	s.call(2, 10*time.Second, referee.Busy)
	require.Empty(t, s.judge(t).Linear, "one server that forgets promises no order")

	s.setting.Quorum = 3
	v := s.judge(t)
	require.Len(t, v.Breaches, 1)
	require.Equal(t, "linearizable", v.Breaches[0].Rule)
}

// On a slow machine it takes longer than it was to until a request comes out of a black hole.
func TestLinearizabilityWithAFaultThatTookLonger(t *testing.T) {
	for end, linear := range map[time.Duration]string{3 * time.Second: "not linearizable", 20 * time.Second: "linearizable"} {
		s := newScript(referee.Alone)
		s.setting.Lossy = false
		s.fault(referee.Hole, referee.Primary, 2, 500*ms, end)
		s.call(2, time.Second, referee.Unavailable)
		s.call(1, 19*time.Second, referee.Busy)
		require.Equal(t, linear, s.judge(t).Linear)
	}
}

// Nor do two ever run at once.
func TestOverlapsOfAQuorum(t *testing.T) {
	s := newScript(referee.Alone)
	play := func() {
		s.fault(referee.Restart, referee.Server(2), 0, 200*ms, 600*ms)
		s.run(1, 100*ms, 900*ms, result(referee.Lost))
		s.run(2, 610*ms, 5*time.Second)
	}
	play()
	require.Empty(t, s.judge(t).Breaches, "one server that has forgotten the first")

	s = newScript(referee.Alone)
	s.setting.Quorum = 3
	play()
	v := s.judge(t)
	require.Zero(t, v.Setting.Bound())
	require.Equal(t, 290*ms, v.Covered)
	require.Len(t, v.Breaches, 2)
	require.Equal(t, "linearizable", v.Breaches[0].Rule)
	require.Equal(t, "overlap", v.Breaches[1].Rule)
	require.Contains(t, v.Breaches[1].Text, "a majority of the quorum had kept its keys")
}
