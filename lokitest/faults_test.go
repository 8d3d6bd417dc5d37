package lokitest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

var (
	errBroken = errors.New("the store is on fire")
	anyClaim  = loki.Claim{Key: "k", Token: "a", Expiry: time.Minute, Holder: "someone"}
	rival     = loki.Claim{Key: "k", Token: "b", Expiry: time.Minute, Holder: "someone else"}
)

// operations are all that a handler can be asked, with an error as the only answer.
var operations = map[lokitest.Op][]func(*lokitest.Faults, context.Context) error{
	lokitest.OpLock: {
		func(f *lokitest.Faults, ctx context.Context) error { _, err := f.Lock(ctx, anyClaim); return err },
		func(f *lokitest.Faults, ctx context.Context) error { _, err := f.Grant(ctx, anyClaim); return err },
	},
	lokitest.OpExtend: {
		func(f *lokitest.Faults, ctx context.Context) error { _, err := f.Extend(ctx, anyClaim); return err },
		func(f *lokitest.Faults, ctx context.Context) error {
			_, err := f.ExtendAll(ctx, []loki.Claim{anyClaim})
			return err
		},
	},
	lokitest.OpRelease: {
		func(f *lokitest.Faults, ctx context.Context) error { return f.Release(ctx, anyClaim) },
		func(f *lokitest.Faults, ctx context.Context) error {
			_, err := f.ReleaseHeld(ctx, anyClaim)
			return err
		},
	},
	lokitest.OpNotify: {
		func(f *lokitest.Faults, ctx context.Context) error { _, err := f.Notify(ctx, "k"); return err },
	},
	lokitest.OpInspect: {
		func(f *lokitest.Faults, ctx context.Context) error { _, _, err := f.Inspect(ctx, "k"); return err },
	},
}

// onOperations runs test with every operation, in a bubble each.
func onOperations(t *testing.T, test func(t *testing.T, f *lokitest.Faults, store *lokitest.Recorder, op lokitest.Op, call func(context.Context) error)) {
	for op, ways := range operations {
		for _, way := range ways {
			t.Run(string(op), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := lokitest.NewRecorder(memhandler.New())
					f := lokitest.NewFaults(store)
					test(t, f, store, op, func(ctx context.Context) error { return way(f, ctx) })
				})
			})
		}
	}
}

func TestFaultsErrBeforeTheStore(t *testing.T) {
	onOperations(t, func(t *testing.T, f *lokitest.Faults, store *lokitest.Recorder, op lokitest.Op, call func(context.Context) error) {
		f.Set(op, lokitest.Fault{Err: errBroken})
		require.ErrorIs(t, call(t.Context()), errBroken)
		require.Empty(t, store.Calls(), "the store must not be reached")
	})
}

func TestFaultsLostReply(t *testing.T) {
	onOperations(t, func(t *testing.T, f *lokitest.Faults, store *lokitest.Recorder, op lokitest.Op, call func(context.Context) error) {
		f.Set(op, lokitest.Fault{Err: errBroken, LostReply: true})
		require.ErrorIs(t, call(t.Context()), errBroken)
		require.Len(t, store.Calls(op), 1, "the store must have done it")
		require.NoError(t, store.Calls()[0].Err)
	})
}

func TestFaultsLostReplyTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memhandler.New()
		f := lokitest.NewFaults(store)
		f.Set(lokitest.OpLock, lokitest.Fault{Err: errBroken, LostReply: true})
		held, err := f.Lock(t.Context(), anyClaim)
		require.ErrorIs(t, err, errBroken)
		require.False(t, held)
		g, err := f.Grant(t.Context(), anyClaim)
		require.ErrorIs(t, err, errBroken)
		require.Zero(t, g)
		require.Equal(t, []string{"k"}, store.HeldKeys())
	})
}

func TestFaultsPanic(t *testing.T) {
	onOperations(t, func(t *testing.T, f *lokitest.Faults, store *lokitest.Recorder, op lokitest.Op, call func(context.Context) error) {
		f.Next(op, lokitest.Fault{Panic: errBroken})
		require.PanicsWithValue(t, errBroken, func() { _ = call(t.Context()) })
		require.Empty(t, store.Calls())
		require.NoError(t, call(t.Context()), "a panic must leave nothing locked")
	})
}

func TestFaultsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lokitest.NewRecorder(memhandler.New())
		f := lokitest.NewFaults(store)
		held, err := f.Lock(t.Context(), anyClaim)
		require.NoError(t, err)
		require.True(t, held)
		store.Reset()

		for _, op := range []lokitest.Op{lokitest.OpLock, lokitest.OpExtend, lokitest.OpRelease, lokitest.OpNotify, lokitest.OpInspect} {
			f.Set(op, lokitest.Fault{Refuse: true})
		}
		held, err = f.Lock(t.Context(), anyClaim)
		require.NoError(t, err)
		require.False(t, held)
		g, err := f.Grant(t.Context(), anyClaim)
		require.NoError(t, err)
		require.False(t, g.Held)
		held, err = f.Extend(t.Context(), anyClaim)
		require.NoError(t, err)
		require.False(t, held)
		require.NoError(t, f.Release(t.Context(), anyClaim))
		_, held, err = f.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, held)
		deaf, err := f.Notify(t.Context(), "k")
		require.NoError(t, err)
		require.NotNil(t, deaf)
		require.Empty(t, store.Calls(), "the store must not be reached")

		f.Clear()
		held, err = f.Lock(t.Context(), rival)
		require.NoError(t, err)
		require.False(t, held, "the refused release must not have released")
		require.NoError(t, f.Release(t.Context(), anyClaim))
		require.Empty(t, deaf, "who was refused is told nothing")
	})
}

// TestFaultsPauses has one pause in each place, honouring ctx or not, with a ctx that ends or not.
func TestFaultsPauses(t *testing.T) {
	const pause, patience = 5 * time.Second, time.Second
	never := func() <-chan struct{} { return make(chan struct{}) }
	soon := func() <-chan struct{} {
		ch := make(chan struct{})
		time.AfterFunc(pause, func() { close(ch) })
		return ch
	}
	for name, tt := range map[string]struct {
		before, after func() lokitest.Pause
		impatient     bool // ctx ends after patience

		took    time.Duration
		err     error
		reached bool
	}{
		"before":              {before: func() lokitest.Pause { return lokitest.Pause{For: pause} }, took: pause, reached: true},
		"before, ctx ends":    {before: func() lokitest.Pause { return lokitest.Pause{For: pause} }, impatient: true, took: patience, err: context.DeadlineExceeded},
		"before, deaf":        {before: func() lokitest.Pause { return lokitest.Pause{For: pause, IgnoreCtx: true} }, impatient: true, took: pause, reached: true},
		"after":               {after: func() lokitest.Pause { return lokitest.Pause{For: pause} }, took: pause, reached: true},
		"after, ctx ends":     {after: func() lokitest.Pause { return lokitest.Pause{For: pause} }, impatient: true, took: patience, err: context.DeadlineExceeded, reached: true},
		"after, deaf":         {after: func() lokitest.Pause { return lokitest.Pause{For: pause, IgnoreCtx: true} }, impatient: true, took: pause, reached: true},
		"hangs, ctx ends":     {before: func() lokitest.Pause { return lokitest.Pause{Until: never()} }, impatient: true, took: patience, err: context.DeadlineExceeded},
		"hangs until freed":   {before: func() lokitest.Pause { return lokitest.Pause{Until: soon()} }, took: pause, reached: true},
		"deaf until freed":    {before: func() lokitest.Pause { return lokitest.Pause{Until: soon(), IgnoreCtx: true} }, impatient: true, took: pause, reached: true},
		"after, hangs":        {after: func() lokitest.Pause { return lokitest.Pause{Until: never()} }, impatient: true, took: patience, err: context.DeadlineExceeded, reached: true},
		"before and after":    {before: func() lokitest.Pause { return lokitest.Pause{For: pause} }, after: func() lokitest.Pause { return lokitest.Pause{For: pause} }, took: 2 * pause, reached: true},
		"for, and then until": {before: func() lokitest.Pause { return lokitest.Pause{For: pause / 5, Until: soon()} }, took: pause, reached: true},
	} {
		t.Run(name, func(t *testing.T) {
			onOperations(t, func(t *testing.T, f *lokitest.Faults, store *lokitest.Recorder, op lokitest.Op, call func(context.Context) error) {
				var fault lokitest.Fault
				if tt.before != nil {
					fault.Before = tt.before()
				}
				if tt.after != nil {
					fault.After = tt.after()
				}
				f.Set(op, fault)
				ctx := t.Context()
				if tt.impatient {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, patience)
					defer cancel()
				}
				start := time.Now()
				require.ErrorIs(t, call(ctx), tt.err)
				require.Equal(t, tt.took, time.Since(start))
				calls := store.Calls(op)
				require.Equal(t, tt.reached, len(calls) == 1)
				if tt.reached {
					require.NoError(t, calls[0].Err, "a command that lands late lands")
				}
			})
		})
	}
}

func TestFaultsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, set, decided := errors.New("first"), errors.New("second"), errors.New("set"), errors.New("decided")
		f := lokitest.NewFaults(memhandler.New())
		f.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if op == lokitest.OpLock && c == anyClaim {
				return lokitest.Fault{Err: decided}
			}
			return lokitest.Fault{}
		})
		f.Set(lokitest.OpLock, lokitest.Fault{Err: set})
		f.Next(lokitest.OpLock, lokitest.Fault{Err: first}, lokitest.Fault{})
		f.Next(lokitest.OpLock, lokitest.Fault{Err: second})

		lock := func() error { _, err := f.Lock(t.Context(), anyClaim); return err }
		require.NoError(t, f.Release(t.Context(), anyClaim), "another op has no fault")
		require.ErrorIs(t, lock(), first)
		require.NoError(t, lock())
		require.ErrorIs(t, lock(), second)
		require.ErrorIs(t, lock(), set)
		require.ErrorIs(t, lock(), set, "until it is cleared")
		f.Clear(lokitest.OpExtend)
		require.ErrorIs(t, lock(), set, "another op was cleared")
		f.Next(lokitest.OpLock, lokitest.Fault{Err: first})
		f.Clear(lokitest.OpLock)
		require.ErrorIs(t, lock(), decided)
		f.Next(lokitest.OpLock, lokitest.Fault{Err: first})
		f.Clear()
		require.NoError(t, lock())
	})
}

func TestFaultsListensNoLongerThanItsContext(t *testing.T) {
	for name, fault := range map[string]lokitest.Fault{
		"healthy":         {},
		"late and deaf":   {Before: lokitest.Pause{For: time.Minute, IgnoreCtx: true}},
		"with lost reply": {Err: errBroken, LostReply: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memhandler.New()
				f := lokitest.NewFaults(store)
				f.Set(lokitest.OpNotify, fault)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				frees, err := f.Notify(ctx, "k")
				require.ErrorIs(t, err, fault.Err)
				require.Equal(t, err == nil, frees != nil)
				if ctx.Err() == nil {
					require.Equal(t, []string{"k"}, store.ListenedKeys())
				}
				time.Sleep(time.Second)
				synctest.Wait()
				require.Empty(t, store.ListenedKeys())
			})
		})
	}
}

func TestFaultsKeepsToOneFaultACall(t *testing.T) {
	f := lokitest.NewFaults(twoMethods{memhandler.New()})
	f.Next(lokitest.OpLock, lokitest.Fault{Err: errBroken})
	_, err := f.Grant(t.Context(), anyClaim)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = f.Lock(t.Context(), anyClaim)
	require.ErrorIs(t, err, errBroken, "a Grant that reached nothing must not use up the fault")
}

func TestDecoratorsValidate(t *testing.T) {
	for name, decorate := range map[string]func(loki.LockHandler) loki.LockHandler{
		"faults":   func(h loki.LockHandler) loki.LockHandler { return lokitest.NewFaults(h) },
		"recorder": func(h loki.LockHandler) loki.LockHandler { return lokitest.NewRecorder(h) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, decorate(memhandler.New()).(loki.Validator).Validate())
			require.ErrorIs(t, decorate(invalid{memhandler.New()}).(loki.Validator).Validate(), errBroken)

			around := decorate(nil)
			require.ErrorContains(t, around.(loki.Validator).Validate(), "around nil")
			_, err := around.Lock(t.Context(), anyClaim)
			require.ErrorContains(t, err, "around nil")
			require.ErrorContains(t, around.Release(t.Context(), anyClaim), "around nil")
			_, err = around.(loki.Granter).Grant(t.Context(), anyClaim)
			require.ErrorIs(t, err, errors.ErrUnsupported)
		})
	}
}

type invalid struct{ loki.LockHandler }

func (invalid) Validate() error { return errBroken }
