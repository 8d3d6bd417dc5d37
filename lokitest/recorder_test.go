package lokitest_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

func TestRecorderRecordsEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := lokitest.NewFaults(memhandler.New())
		slow.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
			return lokitest.Fault{Before: lokitest.Pause{For: time.Second}}
		})
		r := lokitest.NewRecorder(slow)
		start := time.Now()

		held, err := r.Lock(t.Context(), anyClaim)
		require.NoError(t, err)
		require.True(t, held)
		g, err := r.Grant(t.Context(), rival)
		require.NoError(t, err)
		require.False(t, g.Held)
		held, err = r.Extend(t.Context(), anyClaim)
		require.NoError(t, err)
		require.True(t, held)
		h, held, err := r.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, held)
		all, err := r.ExtendAll(t.Context(), []loki.Claim{rival, anyClaim})
		require.NoError(t, err)
		require.Equal(t, []loki.Extended{{}, {Held: true}}, all)
		frees, err := r.Notify(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, slow.Release(t.Context(), anyClaim))
		require.Len(t, frees, 1, "what the store tells must come through")
		slow.Next(lokitest.OpRelease, lokitest.Fault{Err: errBroken})
		require.ErrorIs(t, r.Release(t.Context(), anyClaim), errBroken)

		at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
		require.Equal(t, []lokitest.Call{
			{Op: lokitest.OpLock, Claim: anyClaim, Held: true, Start: at(0), End: at(1)},
			{Op: lokitest.OpLock, Claim: rival, Grant: g, Start: at(1), End: at(2)},
			{Op: lokitest.OpExtend, Claim: anyClaim, Held: true, Start: at(2), End: at(3)},
			{Op: lokitest.OpInspect, Claim: loki.Claim{Key: "k"}, Held: true, Holder: h, Start: at(3), End: at(4)},
			{Op: lokitest.OpExtend, Claim: rival, Batch: 2, Start: at(4), End: at(5)},
			{Op: lokitest.OpExtend, Claim: anyClaim, Batch: 2, Held: true, Start: at(4), End: at(5)},
			{Op: lokitest.OpNotify, Claim: loki.Claim{Key: "k"}, Start: at(5), End: at(6)},
			{Op: lokitest.OpRelease, Claim: anyClaim, Err: errBroken, Start: at(7), End: at(7)},
		}, r.Calls())
		require.Equal(t, "someone", g.HeldBy.ID)
		require.Equal(t, "someone", h.ID)

		require.Len(t, r.Calls(lokitest.OpLock), 2)
		require.Len(t, r.Calls(lokitest.OpLock, lokitest.OpRelease), 3)
		r.Reset()
		require.Empty(t, r.Calls())
	})
}

func TestRecorderKnowsCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		f := lokitest.NewFaults(memhandler.New())
		f.Next(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{Until: stuck}})
		r := lokitest.NewRecorder(f)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.Lock(t.Context(), anyClaim) })
		synctest.Wait()
		require.NoError(t, r.Release(t.Context(), anyClaim))

		calls := r.Calls()
		require.Len(t, calls, 2)
		require.Equal(t, lokitest.OpLock, calls[0].Op, "in the order of the calls, not of their ends")
		require.Zero(t, calls[0].End)
		require.NotZero(t, calls[1].End)

		r.Reset()
		close(stuck)
		wg.Wait()
		require.Empty(t, r.Calls(), "what was under way at the Reset is forgotten")
		require.Zero(t, calls[0].End, "what Calls returned is a copy")
	})
}

func TestRecorderConcurrently(t *testing.T) {
	r := lokitest.NewRecorder(memhandler.New())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, _ = r.Grant(t.Context(), anyClaim)
			_ = r.Calls()
			_ = r.Release(t.Context(), anyClaim)
		})
	}
	wg.Wait()
	require.Len(t, r.Calls(lokitest.OpLock), 50)
	require.Len(t, r.Calls(lokitest.OpRelease), 50)
	for i, c := range r.Calls() {
		require.NotZero(t, c.End)
		require.False(t, i > 0 && c.Start.Before(r.Calls()[i-1].Start), "in order")
	}
}

func TestRecorderPassesOnWhatIsUnsupported(t *testing.T) {
	r := lokitest.NewRecorder(twoMethods{memhandler.New()})
	_, err := r.Grant(t.Context(), anyClaim)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "loki.Granter")
	_, err = r.Extend(t.Context(), anyClaim)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = r.ReleaseHeld(t.Context(), anyClaim)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, _, err = r.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = r.Notify(t.Context(), "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "loki.Notifier")
	require.Empty(t, r.Calls(), "nothing was asked of the store")
}

func TestCallString(t *testing.T) {
	start := time.Now()
	for want, c := range map[string]lokitest.Call{
		`lock of "k" by a for 1m0s: true after 3ms`:                  {Op: lokitest.OpLock, Claim: anyClaim, Held: true, Start: start, End: start.Add(3 * time.Millisecond)},
		`release of "k" by a for 1m0s: done after 0s`:                {Op: lokitest.OpRelease, Claim: anyClaim, Start: start, End: start},
		`extend of "k" by a for 1m0s: the store is on fire after 1s`: {Op: lokitest.OpExtend, Claim: anyClaim, Err: errBroken, Start: start, End: start.Add(time.Second)},
		`notify of "k": listening after 2s`:                          {Op: lokitest.OpNotify, Claim: loki.Claim{Key: "k"}, Start: start, End: start.Add(2 * time.Second)},
		`inspect of "k": under way`:                                  {Op: lokitest.OpInspect, Claim: loki.Claim{Key: "k"}, Start: start},
	} {
		require.Equal(t, want, c.String())
	}
}
