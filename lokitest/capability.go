package lokitest

import (
	"context"
	"errors"

	"github.com/lokilock/loki"
)

// capability is named like the interface that it is found by.
type capability string

const (
	granter       capability = "Granter"
	extender      capability = "Extender"
	batchExtender capability = "BatchExtender"
	releaser      capability = "Releaser"
	notifier      capability = "Notifier"
	inspector     capability = "Inspector"
)

var capabilities = []capability{granter, extender, batchExtender, releaser, notifier, inspector}

// probeCapabilities calls each method that h has once: a decorator has all of them, and its error says whether the handler
// inside has them too. Any other error, and a panic, is for the clauses to find.
func probeCapabilities(ctx context.Context, h loki.LockHandler) map[capability]bool {
	p := newProbe(ctx, clause{}, h)
	defer p.cleanUp()
	c := p.claim(p.key(""), lasting)
	return map[capability]bool{
		granter:       supports[loki.Granter](p, func() error { return p.ask(c, p.byGrant(c)).err }),
		extender:      supports[loki.Extender](p, func() error { return p.ask(c, p.byExtend(c)).err }),
		batchExtender: supports[loki.BatchExtender](p, func() error { return p.ask(c, p.byExtendAll(c)).err }),
		releaser:      supports[loki.Releaser](p, func() error { return p.ask(c, p.byReleaseHeld(c)).err }),
		notifier: supports[loki.Notifier](p, func() error {
			_, err := p.notify(p.ctx, c.Key)
			return err
		}),
		inspector: supports[loki.Inspector](p, func() error {
			_, _, err := h.(loki.Inspector).Inspect(p.ctx, c.Key)
			return err
		}),
	}
}

func supports[C any](p *probe, call func() error) bool {
	_, ok := p.handler.(C)
	if ok {
		p.run(func() { ok = !errors.Is(call(), errors.ErrUnsupported) })
	}
	return ok
}
