package lokitest_test

import (
	"context"
	"errors"
	"time"

	"github.com/lokilock/loki"
)

var extendMutants = map[string]map[string]func(*mutant){
	"extend-for-longer": {
		"changes nothing": func(m *mutant) {
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				token, _ := m.holding(ctx, c.Key)
				return token == c.Token, nil
			}
		},
		"refuses": func(m *mutant) {
			m.extend = func(ctx context.Context, _ loki.Claim) (bool, error) { return false, ctx.Err() }
		},
	},
	"extend-for-shorter": {
		"never shortens": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				_, h := m.holding(ctx, c.Key)
				c.Expiry = max(c.Expiry, time.Until(h.Until))
				return healthy(ctx, c)
			}
		},
		"a little short": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				c.Expiry -= c.Expiry / 10
				return healthy(ctx, c)
			}
		},
	},
	"extend-by-holder-only": {
		"says yes to everybody": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				_, err := healthy(ctx, c)
				return err == nil, err
			}
		},
		"extends for whoever asks, and says no": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				asked := c.Token
				c.Token, _ = m.holding(ctx, c.Key)
				if c.Token == "" {
					return false, nil
				}
				held, err := healthy(ctx, c)
				return held && asked == c.Token, err
			}
		},
	},
	"extend-never-takes": {
		"is Lock": func(m *mutant) {
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				g, err := m.grant(ctx, c)
				return g.Held, err
			}
		},
		"takes what it once held, and says no": func(m *mutant) {
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				token, _ := m.holding(ctx, c.Key)
				if token == "" && !m.granted(c) {
					return false, nil
				}
				_, err := m.grant(ctx, c)
				return token == c.Token, err
			}
		},
	},
	"extend-supersedes-nobody": {
		"replaces the superseded one": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				if c.Supersedes != "" {
					g, err := m.grant(ctx, c)
					return g.Held, err
				}
				return healthy(ctx, c)
			}
		},
	},
	"extend-with-ended-context": {
		"is not looked at": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				return healthy(context.WithoutCancel(ctx), c)
			}
		},
		"extends and returns the error": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				held, err := healthy(context.WithoutCancel(ctx), c)
				return held, errors.Join(err, ctx.Err())
			}
		},
		"is told as not held": func(m *mutant) {
			healthy := m.extend
			m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
				held, err := healthy(ctx, c)
				if ctx.Err() != nil {
					err = nil
				}
				return held, err
			}
		},
	},
}

var inspectMutants = map[string]map[string]func(*mutant){
	"inspect-tells-holder": {
		"tells the token": onHolder(func(m *mutant, key string, h *loki.Holder) { h.ID, _ = m.holding(context.Background(), key) }),
		"varchar":         onHolder(func(_ *mutant, _ string, h *loki.Holder) { h.ID = ascii(h.ID) }),
		"tells nothing":   onHolder(func(_ *mutant, _ string, h *loki.Holder) { h.ID = "" }),
		"says nobody": func(m *mutant) {
			m.inspect = func(ctx context.Context, _ string) (loki.Holder, bool, error) { return loki.Holder{}, false, ctx.Err() }
		},
	},
	"inspect-tells-nobody": {
		"says somebody": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				h, _, err := healthy(ctx, key)
				return h, err == nil, err
			}
		},
		"keeps what is over": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				h, held, err := healthy(ctx, key)
				m.mu.Lock()
				defer m.mu.Unlock()
				return h, held || err == nil && len(m.tokens[key]) > 0, err
			}
		},
		"takes it": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				h, held, err := healthy(ctx, key)
				if !held && err == nil {
					_, err = m.grant(ctx, loki.Claim{Key: key, Token: "inspector", Expiry: time.Second})
				}
				return h, held, err
			}
		},
		"is an error": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				h, held, err := healthy(ctx, key)
				if !held && err == nil {
					err = errors.New("no rows")
				}
				return h, held, err
			}
		},
	},
	"inspect-tells-times": {
		"the wrong unit":       onHolder(func(_ *mutant, _ string, h *loki.Holder) { h.Until = h.Since.Add(h.Until.Sub(h.Since) / 1000) }),
		"since the last grant": onHolder(func(_ *mutant, _ string, h *loki.Holder) { h.Since = h.Until.Add(-time.Minute) }),
	},
	"inspect-changes-nothing": {
		"renews": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				if token, _ := m.holding(ctx, key); token != "" {
					_, _ = m.store.Extend(ctx, loki.Claim{Key: key, Token: token, Expiry: time.Minute})
				}
				return healthy(ctx, key)
			}
		},
		"releases": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				h, held, err := healthy(ctx, key)
				if token, _ := m.holding(ctx, key); token != "" {
					_ = m.store.Release(ctx, loki.Claim{Key: key, Token: token})
				}
				return h, held, err
			}
		},
	},
	"inspect-with-ended-context": {
		"is not looked at": func(m *mutant) {
			healthy := m.inspect
			m.inspect = func(ctx context.Context, key string) (loki.Holder, bool, error) {
				return healthy(context.WithoutCancel(ctx), key)
			}
		},
	},
}

// leaves changes what a claim is said to have left.
func leaves(change func(h *loki.Holder)) func(*mutant) {
	return func(m *mutant) {
		onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { change(h) })(m)
		onHolder(func(_ *mutant, _ string, h *loki.Holder) { change(h) })(m)
	}
}

// leavesWrong are the ways that Grant and Inspect have in common.
var leavesWrong = map[string]func(*mutant){
	"the whole expiry":  leaves(func(h *loki.Holder) { h.Left = time.Minute }),
	"the wrong unit":    leaves(func(h *loki.Holder) { h.Left /= 1000 }),
	"in whole seconds":  leaves(func(h *loki.Holder) { h.Left = h.Left.Truncate(time.Second) }),
	"below zero":        leaves(func(h *loki.Holder) { h.Left = -h.Left }),
	"since the first":   leaves(func(h *loki.Holder) { h.Left = time.Until(h.Since.Add(time.Minute)) }),
	"until another day": leaves(func(h *loki.Holder) { h.Left += time.Hour }),
}

var leftMutants = map[string]map[string]func(*mutant){
	"grant-tells-left":   leavesWrong,
	"inspect-tells-left": leavesWrong,
}
