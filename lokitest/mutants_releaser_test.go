package lokitest_test

import (
	"context"
	"errors"

	"github.com/lokilock/loki"
)

// onFound changes what ReleaseHeld reports.
func onFound(change func(m *mutant, c loki.Claim, held bool) bool) func(*mutant) {
	return func(m *mutant) {
		healthy := m.releaseHeld
		m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
			token, _ := m.holding(ctx, c.Key)
			held, err := healthy(ctx, c)
			if err != nil {
				return held, err
			}
			return change(m, c, token == c.Token), nil
		}
	}
}

var releaserMutants = map[string]map[string]func(*mutant){
	"releaser-reports-held": {
		"always says no": onFound(func(*mutant, loki.Claim, bool) bool { return false }),
		"asks once it is released": func(m *mutant) {
			healthy := m.releaseHeld
			m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
				_, err := healthy(ctx, c)
				token, _ := m.holding(ctx, c.Key)
				return token == c.Token, err
			}
		},
	},
	"releaser-reports-not-held": {
		"always says yes":           onFound(func(*mutant, loki.Claim, bool) bool { return true }),
		"says whether it ever held": onFound(func(m *mutant, c loki.Claim, _ bool) bool { return m.granted(c) }),
		"says whether anybody holds": func(m *mutant) {
			m.releaseHeld = m.releaseOf(func(token string, _ loki.Claim) bool { return token != "" })
		},
		"releases for whoever asks it": func(m *mutant) { m.releaseHeld = m.releaseAnybody },
	},
	"releaser-reports-loss": {
		"says whether it ever held": onFound(func(m *mutant, c loki.Claim, _ bool) bool { return m.granted(c) }),
		"releases for whoever once held it": func(m *mutant) {
			healthy := m.releaseHeld
			m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
				if m.granted(c) {
					return m.releaseAnybody(ctx, c)
				}
				return healthy(ctx, c)
			}
		},
	},
	"releaser-with-ended-context": {
		"is not looked at": func(m *mutant) {
			healthy := m.releaseHeld
			m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
				return healthy(context.WithoutCancel(ctx), c)
			}
		},
		"releases and returns the error": func(m *mutant) {
			healthy := m.releaseHeld
			m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
				held, err := healthy(context.WithoutCancel(ctx), c)
				return held, errors.Join(err, ctx.Err())
			}
		},
		"is told as not held": func(m *mutant) {
			healthy := m.releaseHeld
			m.releaseHeld = func(ctx context.Context, c loki.Claim) (bool, error) {
				held, err := healthy(ctx, c)
				if ctx.Err() != nil {
					err = nil
				}
				return held, err
			}
		},
	},
}

// releaseOf releases as it should, and reports what found says of the token that holds.
func (m *mutant) releaseOf(found func(token string, c loki.Claim) bool) func(context.Context, loki.Claim) (bool, error) {
	return func(ctx context.Context, c loki.Claim) (bool, error) {
		token, _ := m.holding(ctx, c.Key)
		_, err := m.store.ReleaseHeld(ctx, c)
		return found(token, c), err
	}
}

// releaseAnybody releases the key for whoever holds it, and reports that c did not.
func (m *mutant) releaseAnybody(ctx context.Context, c loki.Claim) (bool, error) {
	token := c.Token
	c.Token, _ = m.holding(ctx, c.Key)
	held, err := m.store.ReleaseHeld(ctx, c)
	return held && token == c.Token, err
}
