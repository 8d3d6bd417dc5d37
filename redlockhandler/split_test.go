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

// Each contender comes first at a server of its own, and each is refused by two: one of them goes on.
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

// forgotten records a claim that has been there for long, as of a process that died.
func (f *fixture) forgotten(c loki.Claim) {
	f.t.Helper()
	f.do("SET", "loki:{"+c.Key+"}", c.Token+" 5 1000 "+c.Holder, "PX", c.Expiry.Milliseconds())
}

func TestVotesAreCastAgainWhileTheyAreSplit(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at {
		f.forgotten(claim("k", time.Minute))
	}
	go func() {
		for n := 0; n < 2; n, _ = q.gates[0].counts() {
			time.Sleep(time.Millisecond)
		}
		for _, f := range q.at { // they expire only now
			f.do("DEL", "loki:{k}")
		}
	}()
	q.mustHold(claim("k", time.Minute))
}

// A claim that gives up leaves the servers to the rivals that rank above it.
func TestASplitVoteIsBusyWithoutAHolder(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders   []int // of each server, 0 for none
		forgotten bool
		rounds    int
	}{
		"three rivals":                   {[]int{1, 2, 3}, false, 3},
		"two rivals and a free server":   {[]int{1, 2, 0}, false, 3},
		"five servers":                   {[]int{1, 1, 2, 2, 0}, false, 3},
		"records of processes that died": {[]int{1, 2, 0}, true, 12},
	} {
		t.Run(name, func(t *testing.T) {
			q := servers.first(t, len(tt.holders))
			holders := []loki.Claim{{}, claim("k", time.Minute), claim("k", time.Minute), claim("k", time.Minute)}
			for i, holder := range tt.holders {
				switch {
				case holder > 0 && tt.forgotten:
					q.at[i].forgotten(holders[holder])
				case holder > 0:
					q.at[i].mustHold(holders[holder])
				}
			}
			require.Equal(t, loki.Grant{}, q.grant(claim("k", time.Minute)))
			entered, _ := q.gates[0].counts()
			if tt.forgotten {
				require.GreaterOrEqual(t, entered, tt.rounds, "and a release, since votes of earlier rounds were kept")
			} else {
				require.Equal(t, tt.rounds, entered)
			}
			for i, holder := range tt.holders {
				if holder == 0 {
					q.at[i].eventuallyEmpty()
				}
			}
		})
	}
}

// The rivals have more votes, and have given up: what they have came late, and is being rolled back.
func TestAClaimThatDoesNotLeadAsksAgain(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at[1:] {
		f.mustHold(claim("k", time.Minute))
	}
	q.gates[2].holdAfter()
	go func() {
		for n := 0; n < 1; _, n = q.gates[0].counts() {
			time.Sleep(time.Millisecond)
		}
		q.gates[0].holdBefore()
		q.gates[2].open() // the votes are split
		for n := 0; n < 2; n, _ = q.gates[0].counts() {
			time.Sleep(time.Millisecond)
		}
		for _, f := range q.at[1:] {
			f.do("DEL", "loki:{k}", "loki:{k}:fence")
		}
		q.gates[0].open() // for the vote to be given back
	}()
	q.mustHold(claim("k", time.Minute))
}

// The error of a context that ended says less than what is known.
func TestASplitVoteIsReportedBeforeTheContextEnds(t *testing.T) {
	q := newQuorum(t, 3)
	for _, f := range q.at {
		f.forgotten(claim("k", time.Minute))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	held, err := q.handler.Lock(ctx, claim("k", time.Minute))
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, ctx.Err())
}

func TestAHolderIsNamedIfAMajorityHasOneToken(t *testing.T) {
	servers := newQuorum(t, 5)
	for name, tt := range map[string]struct {
		holders []int // of each server, 0 for none
		down    int   // of them, from the end
		holder  int   // who is named; 0 for nobody
		want    []redlockhandler.Verdict
	}{
		"a majority":                     {[]int{1, 1, 0}, 0, 1, nil},
		"a majority, and another holder": {[]int{1, 2, 1}, 0, 1, nil},
		"a majority of five":             {[]int{1, 2, 1, 0, 1}, 0, 1, nil},
		"a majority, and a server down":  {[]int{1, 1, 0}, 1, 1, nil},
		"a minority, and servers down":   {[]int{1, 0, 0}, 2, 0, []redlockhandler.Verdict{held, unreachable, unreachable}},
		"nobody, and servers down":       {[]int{0, 0, 0}, 2, 0, []redlockhandler.Verdict{granted, unreachable, unreachable}},
		"what could be ours":             {[]int{1, 0, 0}, 1, 0, nil},
		"what could be ours, of five":    {[]int{1, 1, 0, 0, 0}, 1, 0, nil},
		"what could be the other's":      {[]int{1, 1, 2, 2, 0}, 1, 0, nil},
		"two tokens":                     {[]int{1, 2, 0}, 1, 0, nil},
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
			if tt.want == nil {
				require.NoError(t, err)
				require.Equal(t, holders[tt.holder].Holder, g.HeldBy.ID)
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
