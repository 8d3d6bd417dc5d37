package loki_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

// told returns what a store with a history would be told of the claims on key with their last requests, the oldest claim first:
// "over", "failed" and "unused", and "released" where a release says nothing else.
func (s *testStore) told(key string) (told []string) {
	last := make(map[string]int)
	for _, c := range s.Calls(everyOp...) {
		if c.Claim.Key != key {
			continue
		}
		var words []string
		for _, word := range []struct {
			said bool
			text string
		}{{c.Claim.Over, "over"}, {c.Claim.Failed, "failed"}, {c.Claim.Unused, "unused"}} {
			if word.said {
				words = append(words, word.text)
			}
		}
		if c.Op == lokitest.OpRelease && words == nil {
			words = []string{"released"}
		}
		i, known := last[c.Claim.Token]
		if !known {
			i = len(told)
			last[c.Claim.Token] = i
			told = append(told, "")
		}
		told[i] = strings.Join(words, " ")
	}
	return told
}

// A history is told how each run ended, also where the record is kept for a while, and under which claims nothing ran.
func TestHistory_IsToldWhatRan(t *testing.T) {
	modes := map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "in sync": inSync}
	hold, tick := loki.WithMinHold(time.Minute), loki.WithOccurrence("tick", time.Hour)
	for name, tt := range map[string]struct {
		opts      []loki.Option
		fn        error
		job, tick []string
	}{
		"ran":                         {nil, nil, []string{"released"}, nil},
		"failed":                      {nil, errFn, []string{"failed"}, nil},
		"ran, and held":               {[]loki.Option{hold}, nil, []string{"over"}, nil},
		"failed, and held":            {[]loki.Option{hold}, errFn, []string{"over failed"}, nil},
		"ran an occurrence":           {[]loki.Option{tick}, nil, []string{"released", "unused"}, []string{"over"}},
		"ran an occurrence, and held": {[]loki.Option{tick, hold}, nil, []string{"over", "unused"}, []string{"over"}},
		"failed to run an occurrence": {[]loki.Option{tick}, errFn, []string{"failed", "failed"}, nil},
		"failed to run an occurrence, and held it": {[]loki.Option{tick, hold}, errFn, []string{"over failed", "over failed"}, nil},
	} {
		for mode, change := range modes {
			t.Run(name+" "+mode, func(t *testing.T) {
				inRig(t, func(t *testing.T, r *rig) {
					for range len(tt.job) { // the second time, an occurrence is done
						l := r.locker(change)
						err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error {
							time.Sleep(time.Second) // so that the mirror write has been made
							return tt.fn
						}, tt.opts...)
						if err != nil {
							require.True(t, tt.fn != nil && err == tt.fn || loki.IgnoreBusy(err) == nil, "%v", err) //nolint:errorlint // untouched
						}
						time.Sleep(2 * time.Minute)
					}
					stores := []*testStore{r.primary, r.secondary}
					if mode == "alone" {
						stores = stores[:1]
					}
					for _, s := range stores {
						require.Equal(t, tt.job, s.told("job"))
						require.Equal(t, tt.tick, s.told("job@tick"))
					}
				})
			})
		}
	}
}

func TestHistory_IsToldThatALeaseWasUsed(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		ls, err := r.locker().Acquire(t.Context(), time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, ls.Release(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"released"}, r.primary.told("job"))
		require.Equal(t, []string{"released"}, r.secondary.told("job"))
	})
}

// A release that is repeated long after fn has returned is that of a run as well.
func TestHistory_IsToldWhatRanHoweverLate(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.fail(loki.Unavailable(errDown), lokitest.OpRelease)
		r.requireRan(r.locker(alone))
		time.Sleep(time.Second)
		r.primary.heal()
		time.Sleep(10 * time.Second)
		calls := r.primary.Calls(lokitest.OpRelease)
		require.Greater(t, len(calls), 1)
		require.Equal(t, []string{"released"}, r.primary.told("job"))
	})
}

// An acquisition that comes to nothing is no run: it was rolled back, it backed off, or the Locker was closed meanwhile, in which
// case there is nothing to hold either.
func TestHistory_IsToldWhatNeverRan(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.fail(loki.Unavailable(errDown))
		err := r.locker(inSync).ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), loki.WithMinHold(time.Minute))
		require.ErrorIs(t, err, loki.ErrUnavailable)
		synctest.Wait()
		require.Equal(t, []string{"unused"}, r.primary.told("job"))
	})
	inRig(t, func(t *testing.T, r *rig) {
		r.secondary.plant(t, foreign(time.Minute))
		r.requireBusy(r.locker(inSync))
		synctest.Wait()
		require.Equal(t, []string{"unused"}, r.primary.told("job"))
	})
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.nextCall(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 100 * time.Millisecond}})
		l := r.locker(alone)
		acquired := make(chan error)
		go func() {
			_, err := l.Acquire(t.Context(), 30*time.Second, loki.WithMinHold(time.Minute))
			acquired <- err
		}()
		synctest.Wait()
		go func() { _ = l.Close(t.Context()) }()
		require.ErrorIs(t, <-acquired, loki.ErrClosed)
		synctest.Wait()
		require.Equal(t, "unused", r.primary.told("job")[0])
		r.requireEmpty()
	})
}

// The locks by which the circuit breaker finds out whether a store is back are no runs.
func TestHistory_IsToldThatAProbeIsNoRun(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.fail(errDown)
		for range 5 {
			r.requireRan(l)
		}
		time.Sleep(time.Minute) // nothing is left to roll back, which would find out as well
		r.primaryIsBack()
		probes := 0
		for _, c := range r.primary.Calls(lokitest.OpRelease) {
			if strings.Contains(c.Claim.Key, "@@probe-") {
				probes++
				require.True(t, c.Claim.Unused)
			}
		}
		require.Positive(t, probes)
	})
}
