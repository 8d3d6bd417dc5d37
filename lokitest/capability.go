package lokitest

// This file finds out what a handler can do: by type, and by asking.

import (
	"context"
	"errors"

	"github.com/lokilock/loki"
)

// capability is named like the interface that it is found by.
type capability string

const (
	granter   capability = "Granter"
	extender  capability = "Extender"
	releaser  capability = "Releaser"
	notifier  capability = "Notifier"
	inspector capability = "Inspector"
)

var capabilities = []capability{granter, extender, releaser, notifier, inspector}

// probeCapabilities calls each method that h has once: a decorator has them all and tells by its error what is behind.
// Any other error is for the clauses to find.
func probeCapabilities(ctx context.Context, h loki.LockHandler) map[capability]bool {
	p := newProbe(ctx, clause{}, h)
	defer p.cleanUp()
	c := p.claim(p.key(""), lasting)
	has := make(map[capability]bool)
	if g, ok := h.(loki.Granter); ok {
		a := p.ask(c, func(ctx context.Context, a *answer) { a.grant, a.err = g.Grant(ctx, c) })
		has[granter] = !errors.Is(a.err, errors.ErrUnsupported)
	}
	if e, ok := h.(loki.Extender); ok {
		a := p.ask(c, func(ctx context.Context, a *answer) { a.held, a.err = e.Extend(ctx, c) })
		has[extender] = !errors.Is(a.err, errors.ErrUnsupported)
	}
	if r, ok := h.(loki.Releaser); ok {
		a := p.ask(c, func(ctx context.Context, a *answer) { a.held, a.err = r.ReleaseHeld(ctx, c) })
		has[releaser] = !errors.Is(a.err, errors.ErrUnsupported)
	}
	if _, ok := h.(loki.Notifier); ok {
		_, err := p.notify(p.ctx, c.Key)
		has[notifier] = !errors.Is(err, errors.ErrUnsupported)
	}
	if i, ok := h.(loki.Inspector); ok {
		a := p.ask(c, func(ctx context.Context, a *answer) { _, a.held, a.err = i.Inspect(ctx, c.Key) })
		has[inspector] = !errors.Is(a.err, errors.ErrUnsupported)
	}
	return has
}
