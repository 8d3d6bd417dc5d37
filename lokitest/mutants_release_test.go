package lokitest_test

import (
	"context"
	"errors"

	"github.com/lokilock/loki"
)

var releaseMutants = map[string]map[string]func(*mutant){
	"release-frees": {
		"does nothing": func(m *mutant) { m.release = func(context.Context, loki.Claim) error { return nil } },
	},
	"release-by-holder-only": {
		"frees the key for whoever asks": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				c.Token, _ = m.holding(ctx, c.Key)
				return healthy(ctx, c)
			}
		},
	},
	"release-after-loss": {
		"frees the key for whoever once held it": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if m.granted(c) {
					c.Token, _ = m.holding(ctx, c.Key)
				}
				return healthy(ctx, c)
			}
		},
	},
	"release-of-unheld": {
		"is an error": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if token, _ := m.holding(ctx, c.Key); token != c.Token {
					return errors.New("not held")
				}
				return healthy(ctx, c)
			}
		},
		"records it": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if token, _ := m.holding(ctx, c.Key); token == "" {
					_, err := m.grant(ctx, c)
					return err
				}
				return healthy(ctx, c)
			}
		},
	},
}

var contextMutants = map[string]map[string]func(*mutant){
	"ended-context": {
		"is not looked at": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				return healthy(context.WithoutCancel(ctx), c)
			}
		},
		"an error of its own": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if ctx.Err() != nil {
					return loki.Grant{}, errors.New("i/o timeout")
				}
				return healthy(ctx, c)
			}
		},
		"one error for both": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if ctx.Err() != nil {
					return loki.Grant{}, context.Canceled
				}
				return healthy(ctx, c)
			}
		},
		"records and returns the error": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				g, err := healthy(context.WithoutCancel(ctx), c)
				return g, errors.Join(err, ctx.Err())
			}
		},
	},
	"release-with-ended-context": {
		"is not looked at": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error { return healthy(context.WithoutCancel(ctx), c) }
		},
		"releases and returns the error": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				return errors.Join(healthy(context.WithoutCancel(ctx), c), ctx.Err())
			}
		},
		"returns nil without releasing": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if ctx.Err() != nil {
					return nil
				}
				return healthy(ctx, c)
			}
		},
		"an error of its own": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if ctx.Err() != nil {
					return errors.New("i/o timeout")
				}
				return healthy(ctx, c)
			}
		},
	},
	"no-deadline": {
		"wants one to lock": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if _, ok := ctx.Deadline(); !ok {
					return loki.Grant{}, errors.New("no deadline")
				}
				return healthy(ctx, c)
			}
		},
		"wants one to release": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if _, ok := ctx.Deadline(); !ok {
					return errors.New("no deadline")
				}
				return healthy(ctx, c)
			}
		},
	},
}
