package sqltest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// OpenWithHistory is [Open] for a store that keeps a history, and returns a handler of the same table without one as well.
type OpenWithHistory func(t *testing.T) (s *Store, without Handler)

// RunHistory runs what a history has to say of claims under which nothing runs, or nothing more.
func RunHistory(t *testing.T, open OpenWithHistory) {
	t.Helper()
	for name, run := range map[string]func(*testing.T, *Store, Handler){
		"KeptClaimsEndAsWhatRanUnderThem": testKeptClaims,
		"KeptClaimsThatEndOtherwise":      testKeptClaimsThatEndOtherwise,
		"UnusedClaimsAreNoRuns":           testUnusedClaims,
		"OnlyTheHolderSaysHowItEnded":     testOnlyTheHolderSaysHowItEnded,
		"AnEndingIsOfOneClaim":            testAnEndingIsOfOneClaim,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, without := open(t)
			run(t, s, without)
		})
	}
}

// rounding is more than a store rounds the date of a grant by.
const rounding = 10 * time.Millisecond

// requireRuns requires that the history of key has runs with these outcomes, the newest first.
func (s *Store) requireRuns(t *testing.T, key string, want ...sqlhandler.RunOutcome) []sqlhandler.Run {
	t.Helper()
	runs, err := s.History(t.Context(), s.Prefix+key, 10)
	require.NoError(t, err)
	var outcomes []sqlhandler.RunOutcome
	for _, run := range runs {
		outcomes = append(outcomes, run.Outcome)
	}
	require.Equal(t, want, outcomes)
	return runs
}

// A claim that is kept after what ran under it is over, for a minimum hold or as a completion record, holds to its end like any
// other. It has ended as that did, and then: that it expires says nothing about the run.
func testKeptClaims(t *testing.T, s *Store, _ Handler) {
	for name, keep := range map[string]func(t *testing.T, c loki.Claim){
		"extended": func(t *testing.T, c loki.Claim) {
			s.MustGrant(t, loki.Claim{Key: c.Key, Token: c.Token, Expiry: c.Expiry, Holder: c.Holder})
			s.MustExtend(t, c, true)
		},
		"granted again": func(t *testing.T, c loki.Claim) {
			s.MustGrant(t, loki.Claim{Key: c.Key, Token: c.Token, Expiry: c.Expiry, Holder: c.Holder})
			s.MustGrant(t, c)
		},
		"granted": func(t *testing.T, c loki.Claim) { s.MustGrant(t, c) },
		"granted to a key with a row": func(t *testing.T, c loki.Claim) {
			before := loki.Claim{Key: c.Key, Token: "before", Expiry: c.Expiry, Unused: true}
			s.MustGrant(t, before)
			c.Supersedes = before.Token
			s.MustGrant(t, c)
		},
	} {
		for outcome, failed := range map[sqlhandler.RunOutcome]bool{sqlhandler.RunReleased: false, sqlhandler.RunFailed: true} {
			key := name + " " + string(outcome)
			want := []sqlhandler.RunOutcome{outcome}
			if name == "granted to a key with a row" {
				want = append(want, sqlhandler.RunSuperseded)
			}
			c := s.Claim(key)
			c.Over, c.Failed = true, failed
			keep(t, c)
			ended := time.UnixMicro(s.clock(t))
			s.MustExtend(t, c, true) // confirmed once more
			late := c
			late.Over, late.Failed = false, false
			s.MustExtend(t, late, true) // a renewal that comes late
			s.MustGrant(t, late)
			require.Equal(t, c.Holder, s.MustBeBusy(t, s.Claim(key)).ID)
			s.requireRuns(t, key, append([]sqlhandler.RunOutcome{sqlhandler.RunHeld}, want[1:]...)...)

			s.End(t, c.Key)
			run := s.requireRuns(t, key, want...)[0]
			require.WithinRange(t, run.Until, run.Since, ended.Add(rounding), "when what ran under it was over, and not when it expired")
			s.MustExtend(t, c, false)
			s.MustGrant(t, s.Claim(key)) // in its place
			runs := s.requireRuns(t, key, append([]sqlhandler.RunOutcome{sqlhandler.RunHeld}, want...)...)
			require.Equal(t, run, runs[1])
		}
	}
}

func testKeptClaimsThatEndOtherwise(t *testing.T, s *Store, _ Handler) {
	kept := func(key string) loki.Claim {
		c := s.Claim(key)
		s.MustGrant(t, c)
		c.Over = true
		s.MustExtend(t, c, true)
		return c
	}
	lost := kept("lost") // it is found out only now
	lost.Over, lost.Failed = false, true
	s.MustRelease(t, lost)
	s.requireRuns(t, "lost", sqlhandler.RunFailed)

	late := kept("late")
	late.Over, late.Failed = false, true
	s.End(t, late.Key)
	s.MustRelease(t, late)
	s.requireRuns(t, "late", sqlhandler.RunReleased)

	next := s.Claim("superseded")
	next.Supersedes = kept("superseded").Token
	s.MustGrant(t, next)
	s.requireRuns(t, "superseded", sqlhandler.RunHeld, sqlhandler.RunReleased)
}

// A claim under which nothing ran is gone with its release, which reports what any other would.
func testUnusedClaims(t *testing.T, s *Store, _ Handler) {
	for _, fence := range []int64{0, time.Now().Add(time.Hour).UnixMicro()} { // a store may keep the row of one that is ahead
		c := s.Claim("k")
		c.Fence = fence
		s.MustGrant(t, c)
		c.Unused = true
		s.requireRuns(t, "k", sqlhandler.RunHeld)
		held, err := s.ReleaseHeld(t.Context(), c)
		require.NoError(t, err)
		require.True(t, held)
		held, err = s.ReleaseHeld(t.Context(), c)
		require.NoError(t, err)
		require.False(t, held)
		s.requireRuns(t, "k")
	}
	late := s.Claim("late")
	s.MustGrant(t, late)
	s.End(t, late.Key)
	late.Unused = true
	held, err := s.ReleaseHeld(t.Context(), late)
	require.NoError(t, err)
	require.False(t, held)
	s.requireRuns(t, "late")
}

// A claim that is refused changes nothing about the one that holds.
func testOnlyTheHolderSaysHowItEnded(t *testing.T, s *Store, _ Handler) {
	c, other := s.Claim("k"), s.Claim("k")
	s.MustGrant(t, c)
	other.Over = true
	s.MustBeBusy(t, other)
	s.MustExtend(t, other, false)
	other.Unused = true
	s.MustRelease(t, other)
	s.requireRuns(t, "k", sqlhandler.RunHeld)
	s.End(t, c.Key)
	c.Over = true
	s.MustExtend(t, c, false) // too late
	s.requireRuns(t, "k", sqlhandler.RunExpired)
	s.MustGrant(t, other)
	s.requireRuns(t, "k", sqlhandler.RunHeld, sqlhandler.RunExpired)
}

// What a row says of an earlier claim is not said of a later one, which another handler may have put in its place: it knows
// nothing of a history.
func testAnEndingIsOfOneClaim(t *testing.T, s *Store, without Handler) {
	for _, renewed := range []bool{false, true} {
		key := map[bool]string{false: "k", true: "renewed"}[renewed]
		kept, crashed, next := s.Claim(key), s.Claim(key), s.Claim(key)
		kept.Over = true
		s.MustGrant(t, kept)
		s.End(t, kept.Key)
		for ended := s.clock(t); s.clock(t) < ended+rounding.Microseconds(); {
			runtime.Gosched() // the server's clock is waited for
		}
		held, err := without.Lock(t.Context(), crashed)
		require.NoError(t, err)
		require.True(t, held)
		if renewed {
			s.MustExtend(t, crashed, true)
		}
		s.End(t, crashed.Key)
		s.requireRuns(t, key, sqlhandler.RunExpired)
		s.MustGrant(t, next)
		s.requireRuns(t, key, sqlhandler.RunHeld, sqlhandler.RunExpired)
	}
}
