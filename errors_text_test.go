package loki_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

// hostile is what anybody may have written into a store, or a driver into an error.
const hostile = "root\n2026-01-01 ERROR forged line\x1b[2J\x07\u202egnp.exe\ufeff\u200b\x00\xff\r"

// requireReadable checks a text that may end up in a log.
func requireReadable(t *testing.T, text string, longest int) {
	t.Helper()
	require.LessOrEqual(t, len(text), longest)
	for _, r := range text {
		require.True(t, unicode.IsPrint(r), "%U in %q", r, text)
	}
}

func TestErrorTextsQuoteAndCutWhatIsNotTheirs(t *testing.T) {
	for name, foreignText := range map[string]string{"hostile": hostile, "long": strings.Repeat("€", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l, sync := r.locker(), r.locker(inSync)
				other := foreign(time.Minute)
				other.Holder = foreignText
				broken := errors.New(foreignText)
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(broken)
				for what, provoke := range map[string]func() error{
					"held in the primary": func() error { r.primary.plant(t, other); return r.requireBusy(l) },
					"held in the secondary": func() error {
						r.secondary.plant(t, other)
						return r.requireBusy(sync)
					},
					"lost to the secondary's holder": func() error {
						r.secondary.plant(t, other)
						return l.ExecuteWithinLock(t.Context(), time.Minute, func(ctx context.Context) error {
							<-ctx.Done()
							return nil
						})
					},
					"run already": func() error {
						other.Key = "job@a"
						defer func() { other.Key = "job" }()
						r.primary.plant(t, other)
						return r.requireBusy(r.locker(alone), loki.WithOccurrence("a", time.Minute))
					},
					"refused": func() error {
						r.primary.fail(broken)
						return l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
					},
					"unavailable": func() error {
						r.primary.fail(loki.Unavailable(broken))
						r.secondary.fail(loki.Unavailable(broken))
						return l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t))
					},
					"cancelled": func() error { return l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t)) },
				} {
					err := provoke()
					require.Error(t, err, what)
					requireReadable(t, err.Error(), 8_500) // two errors of 1000 characters with up to four bytes each
					if handlerErr, ok := errors.AsType[*loki.HandlerError](err); ok {
						requireReadable(t, handlerErr.Error(), 4_200)
						require.ErrorIs(t, err, broken, "errors.Is finds it all the same")
					}
					if busy, ok := errors.AsType[*loki.BusyError](err); ok {
						require.Equal(t, foreignText, busy.Holder.ID, "the field is as the store has it")
						require.LessOrEqual(t, len(err.Error()), 1_700)
					}
					r.primary.heal()
					r.secondary.heal()
					time.Sleep(time.Hour)
				}
				synctest.Wait()
				for _, e := range r.log.events {
					if e.Err != nil {
						requireReadable(t, e.Err.Error(), 8_500)
					}
				}
			})
		})
	}
}

func TestArgumentErrorsQuoteAndCut(t *testing.T) {
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: memhandler.New()})
	require.NoError(t, err)
	for _, text := range []string{hostile, "\xff" + strings.Repeat("x", 1<<20), strings.Repeat("€", 1<<20), " " + strings.Repeat("x", 1<<20)} {
		_, err := loki.New(loki.Config{ServiceKey: text, Holder: text, Primary: memhandler.New()})
		require.Error(t, err)
		for line := range strings.Lines(err.Error()) {
			requireReadable(t, strings.TrimSuffix(line, "\n"), 1_000)
		}
		for _, opt := range []loki.Option{loki.WithResource(text), loki.WithOccurrence(text, time.Minute)} {
			err := l.ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t), opt)
			require.Error(t, err)
			requireReadable(t, err.Error(), 1_000)
		}
	}
}

// The reader sees from the remaining time whether a holder is alive: one that is renews.
func TestBusyTextHasTheRemainingTime(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.plant(t, foreign(time.Minute))
		time.Sleep(48 * time.Second)
		require.EqualError(t, r.requireBusy(l),
			`loki: lock "job" is busy: held by "somebody else" since 2000-01-01T00:00:00.000Z, expires in 12s unless it is renewed`)
		require.EqualError(t, r.requireBusy(l, loki.WithWait(1500*time.Millisecond)),
			`loki: lock "job" is busy: held by "somebody else" since 2000-01-01T00:00:00.000Z, expires in 11s unless it is renewed (the limit of the wait is over)`,
			"as of the moment at which the wait ended")
	})
}

func TestBusyTextLeavesOutWhatTheStoreDoesNotKnow(t *testing.T) {
	for text, h := range map[string]loki.Holder{
		`loki: lock "job" is busy`:                                                      {},
		`loki: lock "job" is busy: held by "on call"`:                                   {ID: "on call", Since: time.UnixMilli(0)},
		`loki: lock "job" is busy, expires in 1.5s unless it is renewed`:                {Left: 1500 * time.Millisecond},
		`loki: lock "job" is busy: held by "a", expires in 1h0m0s unless it is renewed`: {ID: "a", Left: time.Hour},
	} {
		require.EqualError(t, &loki.BusyError{Key: "job", Holder: h}, text)
	}
}

func TestPanicTextIsReadableUpToTheStack(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Panic: hostile})
		require.Error(t, r.locker(alone).ExecuteWithinLock(t.Context(), time.Minute, mustNotRun(t)))
		panics := r.events(loki.KindPanic)
		require.Len(t, panics, 1)
		said, stack, _ := strings.Cut(panics[0].Err.Error(), "\n")
		require.Contains(t, said, "the primary handler panicked: root; ")
		requireReadable(t, said, 200)
		require.True(t, strings.HasPrefix(stack, "goroutine "), stack)
	})
}
