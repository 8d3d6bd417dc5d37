package loki_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/stretchr/testify/require"
)

// An abandoned request to the secondary lands after the next renewal was confirmed: the lease's validity must not be longer
// than the record.
func TestLateRow_Sync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		expiry := 5 * time.Second
		primary, row := memhandler.New(), memhandler.New()
		start := time.Now()
		at := func() time.Duration { return time.Since(start) }
		down := errors.New("down")
		pf, sf := lokitest.NewFaults(primary), lokitest.NewFaults(row)
		cut := 3100 * ms
		pf.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
			switch now := at(); {
			case now >= cut:
				return lokitest.Fault{Err: loki.Unavailable(down)}
			case now > 1600*ms && now < 2400*ms:
				return lokitest.Fault{After: lokitest.Pause{For: 450 * ms}}
			}
			return lokitest.Fault{}
		})
		sf.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			t.Log(at(), "row", op, c.Expiry)
			switch now := at(); {
			case now >= cut:
				return lokitest.Fault{Err: loki.Unavailable(down)}
			case now > 1600*ms && now < 2400*ms: // lands at 3.06 s
				return lokitest.Fault{Before: lokitest.Pause{For: 3060*ms - now, IgnoreCtx: true}}
			}
			return lokitest.Fault{}
		})
		a, err := loki.New(loki.Config{ServiceKey: "job", Holder: "A", Primary: pf, Secondary: sf, Mirror: loki.MirrorSync,
			PrimaryTimeout: 500 * ms, SecondaryTimeout: 300 * ms,
			Observer: func(_ context.Context, e loki.Event) { t.Log(at(), "A", e.Kind, e.Store, e.Err) }})
		require.NoError(t, err)
		// B's primary has forgotten.
		b, err := loki.New(loki.Config{ServiceKey: "job", Holder: "B", Primary: memhandler.New(), Secondary: row, Mirror: loki.MirrorSync})
		require.NoError(t, err)
		var aEnd, bBegin time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := a.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
				<-ctx.Done()
				aEnd = at()
				return nil
			})
			t.Log(at(), "A returned", err)
		}()
		time.Sleep(3500 * ms)
		for bBegin == 0 {
			_ = b.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { bBegin = at(); return nil })
			time.Sleep(10 * ms)
		}
		<-done
		t.Logf("A ended at %v, B began at %v: overlap %v", aEnd, bBegin, aEnd-bBegin)
		if bBegin < aEnd {
			t.Errorf("two at once under MirrorSync for %v", aEnd-bBegin)
		}
		time.Sleep(time.Hour)
	})
}

// The same for a lease that lives by its row under MirrorAsync.
func TestLateRow_Async(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		expiry := time.Second
		primary, row := memhandler.New(), memhandler.New()
		start := time.Now()
		at := func() time.Duration { return time.Since(start) }
		down := loki.Unavailable(errors.New("down"))
		pf, pb, sf := lokitest.NewFaults(primary), lokitest.NewFaults(primary), lokitest.NewFaults(row)
		pf.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault {
			switch now := at(); {
			case now > 640*ms:
				return lokitest.Fault{Err: down}
			case now > 300*ms:
				return lokitest.Fault{After: lokitest.Pause{For: 300 * ms}} // slow, before it is down
			}
			return lokitest.Fault{}
		})
		pb.Set(lokitest.OpLock, lokitest.Fault{Err: down})
		pb.Set(lokitest.OpRelease, lokitest.Fault{Err: down})
		sf.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			t.Log(at(), "row", op, c.Expiry)
			switch now := at(); {
			case now > 990*ms:
				return lokitest.Fault{Err: down}
			case now > 600*ms && now < 900*ms: // lands at 0.985 s
				return lokitest.Fault{Before: lokitest.Pause{For: 985*ms - now, IgnoreCtx: true}}
			}
			return lokitest.Fault{}
		})
		a, err := loki.New(loki.Config{ServiceKey: "job", Holder: "A", Primary: pf, Secondary: sf,
			Observer: func(_ context.Context, e loki.Event) { t.Log(at(), "A", e.Kind, e.Store, e.Err) }})
		require.NoError(t, err)
		b, err := loki.New(loki.Config{ServiceKey: "job", Holder: "B", Primary: pb, Secondary: row})
		require.NoError(t, err)
		var aEnd, bBegin time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := a.ExecuteWithinLock(t.Context(), expiry, func(ctx context.Context) error {
				<-ctx.Done()
				aEnd = at()
				return nil
			})
			t.Log(at(), "A returned", err)
		}()
		time.Sleep(1100 * ms)
		for bBegin == 0 {
			_ = b.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { bBegin = at(); return nil })
			time.Sleep(10 * ms)
		}
		<-done
		t.Logf("A ended at %v, B began at %v", aEnd, bBegin)
		if bBegin < aEnd {
			t.Errorf("two at once for %v", aEnd-bBegin)
		}
		time.Sleep(time.Hour)
	})
}
