package loki_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestOptionsThatContradictEachOtherAreRefused(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		var out, another loki.Outcome
		for name, o := range map[string]struct{ one, other loki.Option }{
			"WithResource":             {loki.WithResource("a"), loki.WithResource("b")},
			"WithWait":                 {loki.WithWait(time.Second), loki.WithWait(loki.UntilDone)},
			"WithMinHold":              {loki.WithMinHold(time.Second), loki.WithMinHold(0)},
			"WithOccurrence":           {loki.WithOccurrence("a", time.Hour), loki.WithOccurrence("b", time.Hour)},
			"WithOccurrence was given": {loki.WithOccurrence("a", time.Hour), loki.WithOccurrence("a", time.Minute)},
			"WithOutcome":              {loki.WithOutcome(&out), loki.WithOutcome(&another)},
		} {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), o.one, loki.WithoutRenewal(), o.other)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "was given twice, with different values: pass it once")
			require.Empty(t, r.primary.Calls())
		}
		for _, same := range []loki.Option{
			loki.WithResource("a"), loki.WithWait(time.Second), loki.WithMinHold(0), loki.WithOccurrence("a", time.Minute),
			loki.WithOutcome(&out), loki.WithoutRenewal(),
		} {
			r.requireSameTwice(l, same)
		}
	})
}

// requireSameTwice runs a closure with an option that was passed twice, as a wrapper that adds its own may do.
func (r *rig) requireSameTwice(l *loki.Locker, same loki.Option) {
	r.t.Helper()
	ran := false
	require.NoError(r.t, l.ExecuteWithinLock(r.t.Context(), time.Minute, func(context.Context) error { ran = true; return nil }, same, same))
	require.True(r.t, ran)
}
