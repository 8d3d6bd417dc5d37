package lokitest_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

// twoMethods is a handler without any capability.
type twoMethods struct{ loki.LockHandler }

// modest is healthy and tells as little as is allowed.
func modest(m *mutant) {
	onAnswer(func(_ *mutant, _ loki.Claim, g *loki.Grant) { g.Fence, g.HeldBy, g.Released = 0, loki.Holder{}, "" })(m)
	onHolder(func(_ *mutant, _ string, h *loki.Holder) { *h = loki.Holder{ID: h.ID} })(m)
}

func TestHealthyHandlersPass(t *testing.T) {
	for name, newHandler := range map[string]func() loki.LockHandler{
		"reference":   func() loki.LockHandler { return memhandler.New() },
		"two methods": func() loki.LockHandler { return twoMethods{memhandler.New()} },
		"decorated":   func() loki.LockHandler { return lokitest.NewFaults(lokitest.NewRecorder(memhandler.New())) },
		"decorated without capabilities": func() loki.LockHandler {
			return lokitest.NewFaults(lokitest.NewRecorder(twoMethods{memhandler.New()}))
		},
		"no mutation": func() loki.LockHandler { return newMutant(func(*mutant) {}) },
		"modest":      func() loki.LockHandler { return newMutant(modest) },
		"talkative":   func() loki.LockHandler { return newMutant(talkative) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, lokitest.Check(t.Context(), newHandler()))
			})
		})
	}
}

func TestNothingIsLeftInASharedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memhandler.New()
		require.NoError(t, lokitest.Check(t.Context(), store))
		require.Empty(t, store.HeldKeys())
	})
}

func TestMutantsAreCaught(t *testing.T) {
	for clause, ways := range mutants {
		for name, mutate := range ways {
			t.Run(clause+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					broken := lokitest.Broken(t.Context(), func() loki.LockHandler { return newMutant(mutate) }, clause)
					require.Contains(t, broken, clause)
					require.Contains(t, broken[clause], lokitest.Laws()[clause], "the failure must quote the contract")
				})
			})
		}
	}
}

func TestGrantIsHeldToTheClausesOfLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := lokitest.Broken(t.Context(), func() loki.LockHandler {
			return newMutant(func(m *mutant) {
				healthy := m.grant
				m.lock = func(ctx context.Context, c loki.Claim) (bool, error) {
					g, err := healthy(ctx, c)
					return g.Held, err
				}
				lockMutants["again-is-granted"]["is busy for its own token"](m)
			})
		})
		require.Contains(t, broken, "Grant/again-is-granted")
		require.NotContains(t, broken, "again-is-granted")
	})
}

func TestExtendAllIsHeldToTheClausesOfExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := lokitest.Broken(t.Context(), func() loki.LockHandler {
			return newMutant(func(m *mutant) {
				m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
					answers := make([]loki.Extended, len(claims))
					for i, c := range claims {
						token, _ := m.holding(ctx, c.Key)
						answers[i].Held = token == c.Token
					}
					return answers, nil
				}
			})
		})
		require.Contains(t, broken, "ExtendAll/extend-for-shorter")
		require.Contains(t, broken, "ExtendAll/extend-with-ended-context")
		require.NotContains(t, broken, "extend-for-shorter")
	})
}

func TestReleaseHeldIsHeldToTheClausesOfRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := lokitest.Broken(t.Context(), func() loki.LockHandler {
			return newMutant(func(m *mutant) {
				m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
					token, _ := m.holding(ctx, c.Key)
					return token == c.Token, ctx.Err()
				}
			})
		})
		require.Contains(t, broken, "ReleaseHeld/release-frees")
		require.Contains(t, broken, "ReleaseHeld/released-is-the-last")
		require.Contains(t, broken, "ReleaseHeld/notify-tells-release")
		require.NotContains(t, broken, "release-frees")
	})
}

func TestEveryClauseHasAMutant(t *testing.T) {
	laws := lokitest.Laws()
	for clause := range laws {
		require.NotEmpty(t, mutants[clause], "the clause %q has never been seen to fail", clause)
	}
	for clause := range mutants {
		require.Contains(t, laws, clause, "a mutant breaks a clause that there is not")
	}
}

func TestEveryClauseQuotesTheContract(t *testing.T) {
	source, err := os.ReadFile("../handler.go")
	require.NoError(t, err)
	contract := strings.Join(strings.Fields(strings.ReplaceAll(string(source), "//", " ")), " ")
	for clause, law := range lokitest.Laws() {
		require.NotEmpty(t, law, clause)
		require.Contains(t, contract, law, "the clause %q quotes words that are not in handler.go", clause)
	}
}

func TestCapabilitiesAreSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		handler loki.LockHandler
		want    bool
	}{
		"all":            {memhandler.New(), true},
		"none":           {twoMethods{memhandler.New()}, false},
		"all, inside":    {lokitest.NewRecorder(memhandler.New()), true},
		"none, inside":   {lokitest.NewRecorder(twoMethods{memhandler.New()}), false},
		"none, deep":     {lokitest.NewFaults(lokitest.NewRecorder(twoMethods{memhandler.New()})), false},
		"all, ill today": {ill{memhandler.New()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, has := range []string{"Granter", "Extender", "BatchExtender", "Releaser", "Notifier", "Inspector"} {
				got := false
				for capability, ok := range lokitest.Capabilities(t.Context(), tt.handler) {
					got = got || ok && string(capability) == has
				}
				require.Equal(t, tt.want, got, has)
			}
		})
	}
}

// ill has every capability; that some fail is for their clauses to find.
type ill struct{ *memhandler.Handler }

func (ill) Inspect(context.Context, string) (loki.Holder, bool, error) {
	return loki.Holder{}, false, os.ErrPermission
}

func (ill) Notify(context.Context, string) (<-chan struct{}, error) { return nil, os.ErrPermission }

// A store that its test closes with defer has to be open for every clause.
func TestRun_IsOverWhenItReturns(t *testing.T) {
	var closed atomic.Bool
	func() {
		defer closed.Store(true)
		lokitest.Run(t, func(*testing.T) loki.LockHandler { return closable{twoMethods{memhandler.New()}, &closed} })
	}()
}

type closable struct {
	twoMethods
	closed *atomic.Bool
}

func (c closable) Lock(ctx context.Context, claim loki.Claim) (bool, error) {
	if c.closed.Load() {
		return false, os.ErrClosed
	}
	return c.twoMethods.Lock(ctx, claim)
}

// A slow server breaks no clause: an answer that comes late proves less, and nothing false.
func TestASlowStorePassesTheRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := lokitest.Broken(t.Context(), func() loki.LockHandler {
			slow := lokitest.NewFaults(memhandler.New())
			half := lokitest.Pause{For: 500 * time.Millisecond}
			slow.Decide(func(lokitest.Op, loki.Claim) lokitest.Fault { return lokitest.Fault{Before: half, After: half} })
			return slow
		}, "one-winner", "one-winner-after-expiry", "one-winner-superseding", "again-against-takeover", "release-against-takeover",
			"extend-against-takeover", "release-against-extend")
		require.Empty(t, broken)
	})
}
