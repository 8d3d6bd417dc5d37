package lokitest_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lokilock/loki"
)

// onBatch changes the answers to claims.
func onBatch(change func(m *mutant, claims []loki.Claim, answers []loki.Extended) []loki.Extended) func(*mutant) {
	return func(m *mutant) {
		healthy := m.extendAll
		m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
			answers, err := healthy(ctx, claims)
			if err == nil {
				answers = change(m, claims, answers)
			}
			return answers, err
		}
	}
}

var batchMutants = map[string]map[string]func(*mutant){
	"extend-all-in-order": {
		"the other way round": onBatch(func(_ *mutant, _ []loki.Claim, answers []loki.Extended) []loki.Extended {
			slices.Reverse(answers)
			return answers
		}),
		"only those that hold": onBatch(func(_ *mutant, _ []loki.Claim, answers []loki.Extended) []loki.Extended {
			return slices.DeleteFunc(answers, func(a loki.Extended) bool { return !a.Held })
		}),
		"one answer for all": onBatch(func(_ *mutant, _ []loki.Claim, answers []loki.Extended) []loki.Extended {
			return slices.Repeat([]loki.Extended{{Held: slices.ContainsFunc(answers, func(a loki.Extended) bool { return a.Held })}}, len(answers))
		}),
		"takes what is free": onBatch(func(m *mutant, claims []loki.Claim, answers []loki.Extended) []loki.Extended {
			for i, a := range answers {
				if !a.Held {
					_, _ = m.grant(context.Background(), claims[i])
				}
			}
			return answers
		}),
	},
	"extend-all-for-each-expiry": {
		"the expiry of the first": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				claims = slices.Clone(claims)
				for i := range claims {
					claims[i].Expiry = claims[0].Expiry
				}
				return healthy(ctx, claims)
			}
		},
		"the shortest expiry": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				claims, shortest := slices.Clone(claims), time.Hour
				for _, c := range claims {
					shortest = min(shortest, c.Expiry)
				}
				for i := range claims {
					claims[i].Expiry = shortest
				}
				return healthy(ctx, claims)
			}
		},
	},
	"extend-all-many": {
		"not more than a hundred": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				answers, err := healthy(ctx, claims[:min(len(claims), 100)])
				return append(answers, make([]loki.Extended, len(claims)-len(answers))...), err
			}
		},
	},
	"extend-all-none": {
		"looks at the first": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				if claims[0].Key == "" {
					return nil, errors.New("no key")
				}
				return healthy(ctx, claims)
			}
		},
		"is an error": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				if len(claims) == 0 {
					return nil, errors.New("syntax error at or near )")
				}
				return healthy(ctx, claims)
			}
		},
	},
	"extend-all-with-a-bad-claim": {
		"an error of one is that of all": func(m *mutant) {
			healthy := m.extendAll
			m.extendAll = func(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
				answers, err := healthy(ctx, claims)
				for _, a := range answers {
					err = errors.Join(err, a.Err)
				}
				return answers, err
			}
		},
		"ends at the first error": onBatch(func(_ *mutant, _ []loki.Claim, answers []loki.Extended) []loki.Extended {
			if i := slices.IndexFunc(answers, func(a loki.Extended) bool { return a.Err != nil }); i >= 0 {
				clear(answers[i+1:])
			}
			return answers
		}),
	},
}
