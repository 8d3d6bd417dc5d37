package lokitest_test

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

// between is how long a mutant that is not atomic takes from its first step to its second.
const between = 2 * time.Millisecond

// looksThenWrites grants in two steps where the first one finds what is said of the token that holds, which is empty for none.
func looksThenWrites(where func(m *mutant, c loki.Claim, holder string) bool) func(*mutant) {
	return func(m *mutant) {
		healthy := m.grant
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			if holder, _ := m.holding(ctx, c.Key); !where(m, c, holder) {
				return healthy(ctx, c)
			}
			time.Sleep(between)
			return m.steal(ctx, c)
		}
	}
}

// hasHistory says that some claim on key was granted before.
func (m *mutant) hasHistory(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.tokens[key]) > 0
}

var raceMutants = map[string]map[string]func(*mutant){
	"one-winner": {
		"looks, then writes": looksThenWrites(func(_ *mutant, _ loki.Claim, holder string) bool { return holder == "" }),
	},
	"one-winner-after-expiry": {
		"sees that it has expired, then writes": looksThenWrites(func(m *mutant, c loki.Claim, holder string) bool {
			return holder == "" && m.hasHistory(c.Key)
		}),
	},
	"one-winner-superseding": {
		"sees whom it supersedes, then writes": looksThenWrites(func(_ *mutant, c loki.Claim, holder string) bool {
			return holder != "" && holder == c.Supersedes
		}),
		"grants to none of those who wait": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if c.Supersedes != "" {
					return loki.Grant{}, nil
				}
				return healthy(ctx, c)
			}
		},
	},
	"again-at-once": {
		"the second insert of the same row fails": func(m *mutant) {
			var underWay sync.Map
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if _, twice := underWay.LoadOrStore(c.Token, true); twice {
					return loki.Grant{}, nil
				}
				defer underWay.Delete(c.Token)
				time.Sleep(time.Millisecond)
				return healthy(ctx, c)
			}
		},
	},
	"many-keys": {
		"one call at a time": func(m *mutant) {
			var underWay atomic.Int32
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				defer underWay.Add(-1)
				if underWay.Add(1) > racersInOneClause {
					return loki.Grant{}, nil
				}
				time.Sleep(time.Millisecond)
				return healthy(ctx, c)
			}
		},
	},
}

// racersInOneClause is more than ask for one key at a time, and fewer than ask for many.
const racersInOneClause = 20

// looks returns the first of two steps: it reports whether c holds, and is late. Once a claim that supersedes has taken the key
// meanwhile it says no after all, if so told; such a mutant is found at the expiry only.
func (m *mutant) looks(seesSuperseding bool) func(ctx context.Context, c loki.Claim) bool {
	var superseding sync.Map // by token
	onClaim(func(c *loki.Claim) {
		if c.Supersedes != "" && seesSuperseding {
			superseding.Store(c.Token, true)
		}
	})(m)
	return func(ctx context.Context, c loki.Claim) bool {
		if holder, _ := m.holding(ctx, c.Key); holder != c.Token || ctx.Err() != nil {
			return false
		}
		time.Sleep(between)
		holder, _ := m.holding(ctx, c.Key)
		_, sees := superseding.Load(holder)
		return !sees
	}
}

func renewsLate(seesSuperseding bool) func(*mutant) {
	return func(m *mutant) {
		looks := m.looks(seesSuperseding)
		healthy := m.grant
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			if looks(ctx, c) {
				return m.steal(ctx, c)
			}
			return healthy(ctx, c)
		}
	}
}

func releasesLate(seesSuperseding bool) func(*mutant) {
	return func(m *mutant) {
		looks := m.looks(seesSuperseding)
		healthy := m.release
		m.release = func(ctx context.Context, c loki.Claim) error {
			if looks(ctx, c) {
				c.Token, _ = m.holding(ctx, c.Key)
			}
			return healthy(ctx, c)
		}
	}
}

func extendsLate(seesSuperseding bool) func(*mutant) {
	return func(m *mutant) {
		looks := m.looks(seesSuperseding)
		healthy := m.extend
		m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
			if looks(ctx, c) {
				g, err := m.steal(ctx, c)
				return g.Held, err
			}
			return healthy(ctx, c)
		}
	}
}

var takeOverMutants = map[string]map[string]func(*mutant){
	"again-against-takeover": {
		"looks, then writes":               renewsLate(false),
		"looks, then writes at the expiry": renewsLate(true),
	},
	"release-against-takeover": {
		"looks, then deletes":               releasesLate(false),
		"looks, then deletes at the expiry": releasesLate(true),
	},
	"extend-against-takeover": {
		"looks, then writes":               extendsLate(false),
		"looks, then writes at the expiry": extendsLate(true),
	},
	"release-against-extend": {
		"looks, then writes": extendsLate(false),
	},
}
