package lokitest

import (
	"context"
	"slices"

	"github.com/lokilock/loki"
)

// Broken runs the clauses of these names, or the whole suite if there are none, on handlers from newHandler and returns
// what it found broken, by clause.
func Broken(ctx context.Context, newHandler func() loki.LockHandler, names ...string) map[string]string {
	broken := make(map[string]string)
	for _, c := range clausesFor(probeCapabilities(ctx, newHandler())) {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if v := c.judge(ctx, newHandler()); v.broken != "" {
			broken[c.name] = v.broken
		}
	}
	return broken
}

// Capabilities are those that the suite sees.
func Capabilities(ctx context.Context, h loki.LockHandler) map[capability]bool {
	return probeCapabilities(ctx, h)
}

// Laws are the words that each clause quotes.
func Laws() map[string]string {
	laws := make(map[string]string)
	for _, c := range append(handlerClauses(), capabilityClauses()...) {
		laws[c.name] = c.law
	}
	return laws
}
