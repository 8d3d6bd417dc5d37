package redlockhandler_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redlockhandler"
)

const (
	granted     = redlockhandler.VerdictGranted
	held        = redlockhandler.VerdictHeld
	notHeld     = redlockhandler.VerdictNotHeld
	unreachable = redlockhandler.VerdictUnreachable
	mistake     = redlockhandler.VerdictPermanentError
)

// Each contender comes first at a server of his own, and each is refused by two: if that were busy, all would skip.
func TestHandlerOfThreeServersAndThreeContenders(t *testing.T) {
	q := newQuorum(t, 3)
	claims := []loki.Claim{claim("k", time.Minute), claim("k", time.Minute), claim("k", time.Minute)}
	var gates [][]*gate
	var handlers []*redlockhandler.Handler
	for i := range claims {
		g, h := q.another()
		for at := range g {
			if at != i {
				g[at].holdBefore()
			}
		}
		gates, handlers = append(gates, g), append(handlers, h)
	}
	won := make([]bool, 3)
	errs := make([]error, 3)
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() { won[i], errs[i] = handlers[i].Lock(q.context(), claims[i]) })
	}
	for i, c := range claims {
		q.at[i].eventuallyHolds(c)
	}
	for _, each := range gates {
		for _, g := range each {
			g.open()
		}
	}
	all.Wait()
	winners := 0
	for i := range claims {
		require.NoError(t, errs[i])
		if won[i] {
			winners++
			q.handler = handlers[i]
			q.release(claims[i])
		}
	}
	require.Equal(t, 1, winners)
	q.nowhere()
}

func TestIsAskedAgainWhenVotesAreSplit(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at {
		f.mustHold(claim("k", 200*time.Millisecond))
	}
	c := claim("k", time.Minute)
	q.mustHold(c)
	entered, _ := q.gates[0].counts()
	require.Greater(t, entered, 1)
}

// Rivals that split the votes to the end are no outage: a Locker that fell back to its secondary would find it free.
func TestVotesThatStaySplitAreContention(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders []int // of each server, 0 for none
		down    int   // of them, from the end
	}{
		"three holders":                      {[]int{1, 2, 3}, 0},
		"two holders and a free server":      {[]int{1, 2, 0}, 0},
		"five servers":                       {[]int{1, 1, 2, 2, 0}, 0},
		"a server down, which could be ours": {[]int{1, 0, 0}, 1},
		"a server down, and two holders":     {[]int{1, 2, 0}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			q := servers.first(t, len(tt.holders))
			holders := []loki.Claim{{}, claim("k", time.Minute), claim("k", time.Minute), claim("k", time.Minute)}
			for i, holder := range tt.holders {
				if holder > 0 {
					q.at[i].mustHold(holders[holder])
				}
			}
			up := len(tt.holders) - tt.down
			for _, g := range q.gates[up:] {
				g.shutDown()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			grant, err := q.handler.Grant(ctx, claim("k", time.Minute))
			require.NoError(t, err)
			require.Equal(t, loki.Grant{Contended: true}, grant)
			entered, _ := q.gates[0].counts()
			require.Greater(t, entered, 1, "it is asked again before")
			for i, holder := range tt.holders[:up] {
				if holder == 0 {
					q.at[i].eventuallyEmpty()
				} else {
					require.True(t, q.at[i].holds(holders[holder]))
				}
			}
		})
	}
}

// A call without a deadline ends as well.
func TestVotesThatStaySplitAreNotCastForever(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at {
		f.mustHold(claim("k", time.Minute))
	}
	grant, err := q.handler.Grant(context.WithoutCancel(t.Context()), claim("k", time.Minute))
	require.NoError(t, err)
	require.Equal(t, loki.Grant{Contended: true}, grant)
}

func TestIsBusyOnlyForOneToken(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders []int // of each server, 0 for none
		down    int   // of them, from the end
		busy    bool
		want    []redlockhandler.Verdict
	}{
		"a majority":                     {[]int{1, 1, 0}, 0, true, nil},
		"a majority, and another holder": {[]int{1, 2, 1}, 0, true, nil},
		"a majority of five":             {[]int{1, 2, 1, 0, 1}, 0, true, nil},
		"a majority, and a server down":  {[]int{1, 1, 0}, 1, true, nil},
		"a minority, and servers down":   {[]int{1, 0, 0}, 2, false, []redlockhandler.Verdict{held, unreachable, unreachable}},
		"nobody, and servers down":       {[]int{0, 0, 0}, 2, false, []redlockhandler.Verdict{granted, unreachable, unreachable}},
	} {
		t.Run(name, func(t *testing.T) {
			q := servers.first(t, len(tt.holders))
			holders := []loki.Claim{{}, claim("k", time.Minute), claim("k", time.Minute)}
			for i, holder := range tt.holders {
				if holder > 0 {
					q.at[i].mustHold(holders[holder])
				}
			}
			up := len(tt.holders) - tt.down
			for _, g := range q.gates[up:] {
				g.shutDown()
			}
			c := claim("k", time.Minute)
			g, err := q.handler.Grant(q.context(), c)
			require.False(t, g.Held)
			if tt.busy {
				require.NoError(t, err)
				require.Equal(t, holders[1].Holder, g.HeldBy.ID)
			} else {
				requireUnavailable(t, err, "no majority for the lock of \"k\"")
				require.Equal(t, tt.want, votes(t, err))
				_ = q.handler.Release(q.context(), c) // as the Locker does after an error
			}
			for i, holder := range tt.holders[:up] {
				if holder == 0 {
					q.at[i].eventuallyEmpty()
				}
			}
		})
	}
}

func TestAndMistakes(t *testing.T) {
	servers := newQuorum(t, 3)
	foreign := func(f *fixture, _ *gate) { f.do("RPUSH", "loki:{k}", "not a lock") }
	down := func(_ *fixture, g *gate) { g.shutDown() }
	fine := func(*fixture, *gate) {}
	for name, tt := range map[string]struct {
		servers []func(*fixture, *gate)
		want    []redlockhandler.Verdict // nil: the lock is granted
		mistake bool
	}{
		"one":                    {[]func(*fixture, *gate){foreign, fine, fine}, nil, false},
		"a majority":             {[]func(*fixture, *gate){foreign, fine, foreign}, []redlockhandler.Verdict{mistake, granted, mistake}, true},
		"a majority, and an end": {[]func(*fixture, *gate){foreign, down, foreign}, []redlockhandler.Verdict{mistake, unreachable, mistake}, true},
		"one, and an outage":     {[]func(*fixture, *gate){foreign, fine, down}, []redlockhandler.Verdict{mistake, granted, unreachable}, false},
	} {
		t.Run(name, func(t *testing.T) {
			q := servers.first(t, 3)
			for i, prepare := range tt.servers {
				prepare(q.at[i], q.gates[i])
			}
			c := claim("k", time.Minute)
			got, err := q.handler.Lock(q.context(), c)
			require.Equal(t, tt.want == nil, got)
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.Equal(t, tt.want, votes(t, err))
			if tt.mistake {
				requireMistake(t, err, "holds something that is not a lock")
			} else {
				requireUnavailable(t, err, "holds something that is not a lock")
			}
		})
	}
}
