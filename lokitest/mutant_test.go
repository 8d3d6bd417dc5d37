package lokitest_test

import (
	"context"
	"slices"
	"sync"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// mutant is a memhandler until something is done to it.
type mutant struct {
	store       *memhandler.Handler
	lock        func(context.Context, loki.Claim) (bool, error)
	grant       func(context.Context, loki.Claim) (loki.Grant, error)
	release     func(context.Context, loki.Claim) error
	extend      func(context.Context, loki.Claim) (bool, error)
	extendAll   func(context.Context, []loki.Claim) ([]loki.Extended, error)
	releaseHeld func(context.Context, loki.Claim) (bool, error)
	notify      func(context.Context, string) (<-chan struct{}, error)
	inspect     func(context.Context, string) (loki.Holder, bool, error)

	mu     sync.Mutex          // guards what follows, and is held while the store is asked who holds
	tokens map[string][]string // by key: all that were granted, the last one last
}

var (
	_ loki.Granter       = (*mutant)(nil)
	_ loki.Extender      = (*mutant)(nil)
	_ loki.BatchExtender = (*mutant)(nil)
	_ loki.Releaser      = (*mutant)(nil)
	_ loki.Notifier      = (*mutant)(nil)
	_ loki.Inspector     = (*mutant)(nil)
)

func newMutant(mutate func(*mutant)) *mutant {
	store := memhandler.New()
	m := &mutant{
		store: store, release: store.Release, releaseHeld: store.ReleaseHeld, extend: store.Extend, extendAll: store.ExtendAll, notify: store.Notify, inspect: store.Inspect,
		tokens: make(map[string][]string),
	}
	m.grant = m.record
	mutate(m)
	if m.lock == nil {
		m.lock = func(ctx context.Context, c loki.Claim) (bool, error) {
			g, err := m.grant(ctx, c)
			return g.Held, err
		}
	}
	return m
}

func (m *mutant) Lock(ctx context.Context, c loki.Claim) (bool, error)        { return m.lock(ctx, c) }
func (m *mutant) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) { return m.grant(ctx, c) }
func (m *mutant) Release(ctx context.Context, c loki.Claim) error             { return m.release(ctx, c) }
func (m *mutant) Extend(ctx context.Context, c loki.Claim) (bool, error)      { return m.extend(ctx, c) }
func (m *mutant) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	return m.extendAll(ctx, claims)
}
func (m *mutant) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	return m.releaseHeld(ctx, c)
}
func (m *mutant) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	return m.notify(ctx, key)
}
func (m *mutant) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	return m.inspect(ctx, key)
}

// record asks the store and notes what it grants, in one step: who holds a key is always among the noted.
func (m *mutant) record(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, err := m.store.Grant(ctx, c)
	if g.Held {
		m.tokens[c.Key] = append(m.tokens[c.Key], c.Token)
	}
	return g, err
}

// granted says whether c was ever granted.
func (m *mutant) granted(c loki.Claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.tokens[c.Key], c.Token)
}

// holding is who holds key, if anybody does, with the token.
func (m *mutant) holding(ctx context.Context, key string) (token string, h loki.Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, held, err := m.store.Inspect(ctx, key)
	if !held || err != nil {
		return "", loki.Holder{}
	}
	all := m.tokens[key]
	return all[len(all)-1], h
}

// steal gives key to c, whoever holds it.
func (m *mutant) steal(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	c.Supersedes, _ = m.holding(ctx, c.Key)
	return m.record(ctx, c)
}

// onClaim changes the claim that is recorded.
func onClaim(change func(c *loki.Claim)) func(*mutant) {
	return func(m *mutant) {
		healthy := m.grant
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			change(&c)
			return healthy(ctx, c)
		}
	}
}

// onAnswer changes what Grant tells.
func onAnswer(change func(m *mutant, c loki.Claim, g *loki.Grant)) func(*mutant) {
	return func(m *mutant) {
		healthy := m.grant
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			g, err := healthy(ctx, c)
			if err == nil {
				change(m, c, &g)
			}
			return g, err
		}
	}
}

// onHolder changes what Inspect tells of a key that is held.
func onHolder(change func(m *mutant, key string, h *loki.Holder)) func(*mutant) {
	return func(m *mutant) {
		healthy := m.inspect
		m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
			h, held, err := healthy(ctx, key)
			if held {
				change(m, key, &h)
			}
			return h, held, err
		}
	}
}

// onKey changes the key under which everything is recorded.
func onKey(change func(string) string) func(*mutant) {
	return func(m *mutant) {
		onClaim(func(c *loki.Claim) { c.Key = change(c.Key) })(m)
		release, extend, extendAll, notify, inspect := m.release, m.extend, m.extendAll, m.notify, m.inspect
		m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
			claims = slices.Clone(claims)
			for i := range claims {
				claims[i].Key = change(claims[i].Key)
			}
			return extendAll(ctx, claims)
		}
		m.release = func(ctx context.Context, c loki.Claim) error {
			c.Key = change(c.Key)
			return release(ctx, c)
		}
		m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
			c.Key = change(c.Key)
			return extend(ctx, c)
		}
		m.notify = func(ctx context.Context, key string) (<-chan struct{}, error) { return notify(ctx, change(key)) }
		m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) { return inspect(ctx, change(key)) }
	}
}
