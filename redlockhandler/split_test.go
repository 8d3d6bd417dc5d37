package redlockhandler_test

import (
	"context"
	"fmt"
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

func TestThatStaysSplitIsUnavailable(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders []int // of each server, 0 for none
		want    []redlockhandler.Verdict
	}{
		"three holders":                 {[]int{1, 2, 3}, []redlockhandler.Verdict{held, held, held}},
		"two holders and a free server": {[]int{1, 2, 0}, []redlockhandler.Verdict{held, held, granted}},
		"five servers":                  {[]int{1, 1, 2, 2, 0}, []redlockhandler.Verdict{held, held, held, held, granted}},
	} {
		t.Run(name, func(t *testing.T) {
			q := servers.first(t, len(tt.holders))
			holders := []loki.Claim{{}, claim("k", time.Minute), claim("k", time.Minute), claim("k", time.Minute)}
			for i, holder := range tt.holders {
				if holder > 0 {
					q.at[i].mustHold(holders[holder])
				}
			}
			_, err := q.handler.Lock(q.context(), claim("k", time.Minute))
			requireUnavailable(t, err, fmt.Sprintf("held by another (%q)", holders[1].Holder))
			require.Equal(t, tt.want, votes(t, err))
			entered, _ := q.gates[0].counts()
			require.Equal(t, 12, entered, "rounds")
			for i, holder := range tt.holders {
				if holder == 0 {
					q.at[i].eventuallyEmpty()
				}
			}
		})
	}
}

// The error of a context that ended says less than what is known.
func TestThatStaysSplitSaysSoBeforeItsContextEnds(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at {
		f.mustHold(claim("k", time.Minute))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := q.handler.Lock(ctx, claim("k", time.Minute))
	requireUnavailable(t, err, "held by another")
	require.Equal(t, []redlockhandler.Verdict{held, held, held}, votes(t, err))
}

func TestIsBusyOnlyForOneToken(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders []int // of each server, 0 for none
		down    int   // of them, from the end
		busy    bool
		want    []redlockhandler.Verdict
	}{
		"a majority":                      {[]int{1, 1, 0}, 0, true, nil},
		"a majority, and another holder":  {[]int{1, 2, 1}, 0, true, nil},
		"a majority of five":              {[]int{1, 2, 1, 0, 1}, 0, true, nil},
		"a majority, and a server down":   {[]int{1, 1, 0}, 1, true, nil},
		"a minority, and servers down":    {[]int{1, 0, 0}, 2, false, []redlockhandler.Verdict{held, unreachable, unreachable}},
		"nobody, and servers down":        {[]int{0, 0, 0}, 2, false, []redlockhandler.Verdict{granted, unreachable, unreachable}},
		"what could be ours":              {[]int{1, 0, 0}, 1, false, []redlockhandler.Verdict{held, granted, unreachable}},
		"what could be ours, of five":     {[]int{1, 1, 0, 0, 0}, 1, false, []redlockhandler.Verdict{held, held, granted, granted, unreachable}},
		"what could be the other's":       {[]int{1, 1, 2, 2, 0}, 1, false, []redlockhandler.Verdict{held, held, held, held, unreachable}},
		"two tokens, which are no answer": {[]int{1, 2, 0}, 1, false, []redlockhandler.Verdict{held, held, unreachable}},
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
			g, err := q.handler.Grant(q.context(), claim("k", time.Minute))
			require.False(t, g.Held)
			if tt.busy {
				require.NoError(t, err)
				require.Equal(t, holders[1].Holder, g.HeldBy.ID)
			} else {
				requireUnavailable(t, err, "no majority for the lock of \"k\"")
				require.Equal(t, tt.want, votes(t, err))
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
