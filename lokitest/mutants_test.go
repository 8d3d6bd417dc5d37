package lokitest_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"time"

	"github.com/lokilock/loki"
)

// mutants are ways to break a clause, by clause and name.
var mutants = func() map[string]map[string]func(*mutant) {
	all := make(map[string]map[string]func(*mutant))
	for _, some := range []map[string]map[string]func(*mutant){
		lockMutants, expiryMutants, releaseMutants, contextMutants, raceMutants, takeOverMutants, keyMutants, mirrorMutants,
		grantMutants, fenceMutants, releasedMutants, extendMutants, batchMutants, releaserMutants, notifyMutants, inspectMutants, leftMutants,
	} {
		maps.Copy(all, some)
	}
	return all
}()

var lockMutants = map[string]map[string]func(*mutant){
	"free-is-granted": {
		"grants nothing": func(m *mutant) {
			m.grant = func(context.Context, loki.Claim) (loki.Grant, error) { return loki.Grant{}, nil }
		},
	},
	"busy-is-an-answer": {
		"busy is an error": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				g, err := healthy(ctx, c)
				if err == nil && !g.Held {
					err = errors.New("the lock is taken")
				}
				return g, err
			}
		},
		"a refusal wears the holder down": onAnswer(func(m *mutant, c loki.Claim, g *loki.Grant) {
			if token, _ := m.holding(context.Background(), c.Key); !g.Held {
				_ = m.store.Release(context.Background(), loki.Claim{Key: c.Key, Token: token})
			}
		}),
	},
	"does-not-wait": {
		"waits for the lock": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				for {
					g, err := healthy(ctx, c)
					if g.Held || err != nil {
						return g, err
					}
					time.Sleep(100 * time.Millisecond)
				}
			}
		},
		"waits and gives up": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				g, err := healthy(ctx, c)
				if !g.Held && err == nil {
					time.Sleep(8 * time.Second)
				}
				return g, err
			}
		},
	},
	"again-is-granted": {
		"is busy for its own token": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if token, _ := m.holding(ctx, c.Key); token == c.Token {
					return loki.Grant{}, nil
				}
				return healthy(ctx, c)
			}
		},
	},
	"taken-is-refused": {
		"grants to whoever once held": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if m.granted(c) {
					return m.steal(ctx, c)
				}
				return healthy(ctx, c)
			}
		},
	},
}

var expiryMutants = map[string]map[string]func(*mutant){
	"held-for-expiry": {
		"a little short": onClaim(func(c *loki.Claim) { c.Expiry -= c.Expiry / 10 }),
		"whole seconds": onClaim(func(c *loki.Claim) {
			if c.Expiry > time.Second {
				c.Expiry = c.Expiry.Truncate(time.Second)
			}
		}),
	},
	"free-after-expiry": {
		"rounds up to a second": onClaim(func(c *loki.Claim) {
			c.Expiry = (c.Expiry + time.Second - 1).Truncate(time.Second)
		}),
		"less than a millisecond is for ever": onClaim(func(c *loki.Claim) {
			if c.Expiry < time.Millisecond {
				c.Expiry = math.MaxInt64 / 2
			}
		}),
		"less than a second is for ever": onClaim(func(c *loki.Claim) {
			if c.Expiry < time.Second {
				c.Expiry = math.MaxInt64 / 2
			}
		}),
		"refuses less than a millisecond": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if c.Expiry < time.Millisecond {
					return loki.Grant{}, errors.New("invalid expire time")
				}
				return healthy(ctx, c)
			}
		},
	},
	"rounded-up": {
		"truncates": onClaim(func(c *loki.Claim) { c.Expiry = max(c.Expiry.Truncate(time.Millisecond), time.Millisecond) }),
	},
	"ten-years": {
		"overflows": onClaim(func(c *loki.Claim) {
			if ms := int32(c.Expiry.Milliseconds()); int64(ms) != c.Expiry.Milliseconds() {
				c.Expiry = time.Millisecond
			}
		}),
		"refuses": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if c.Expiry > 24*time.Hour {
					return loki.Grant{}, errors.New("too long")
				}
				return healthy(ctx, c)
			}
		},
	},
	"again-for-longer": {
		"keeps the first expiry": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if token, h := m.holding(ctx, c.Key); token == c.Token {
					c.Expiry = time.Until(h.Until)
				}
				return healthy(ctx, c)
			}
		},
	},
	"again-for-shorter": {
		"never shortens": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if token, h := m.holding(ctx, c.Key); token == c.Token {
					c.Expiry = max(c.Expiry, time.Until(h.Until))
				}
				return healthy(ctx, c)
			}
		},
	},
}
