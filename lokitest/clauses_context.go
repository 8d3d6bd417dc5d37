package lokitest

import (
	"context"
	"errors"
	"time"
)

const contextLaw = "If ctx has ended already they change nothing and return an error that matches ctx.Err()."

// onEnded calls with a cancelled context, and with one whose deadline has passed.
func (p *probe) onEnded(experiment func(ctx context.Context, name string)) {
	cancelled, cancel := context.WithCancel(p.ctx)
	cancel()
	experiment(cancelled, "cancelled")
	late, cancel := context.WithDeadline(p.ctx, time.Now().Add(-time.Second))
	defer cancel()
	experiment(late, "late")
}

// mustMatch demands the error of an ended context: how else would a caller know that nothing is wrong with the store?
func (p *probe) mustMatch(ctx context.Context, call string, err error) {
	if !errors.Is(err, ctx.Err()) {
		p.fail("%s with a context that had ended returned the error %v; it must match %q.", call, err, ctx.Err())
	}
}

var contextClauses = []clause{
	{
		name: "ended-context",
		law:  contextLaw,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				c := p.claim(p.key(name), lasting)
				a := p.askWith(ctx, c, p.byLock(c))
				p.mustMatch(ctx, "Lock", a.err)
				p.mustBeFree(c.Key, "although the only Lock before came with a context that had ended, and nothing should have been sent")
			})
		},
	},
	{
		name: "release-with-ended-context",
		law:  contextLaw,
		check: func(p *probe) {
			p.onEnded(func(ctx context.Context, name string) {
				c, _ := p.take(p.key(name), lasting)
				a := p.askWith(ctx, c, p.byRelease(c))
				p.mustMatch(ctx, "Release", a.err)
				p.mustBeHeld(c.Key, "although the only Release before came with a context that had ended, and nothing should have been sent")
			})
		},
	},
	{
		name: "no-deadline",
		law:  contextLaw,
		check: func(p *probe) {
			ctx := context.WithoutCancel(p.ctx)
			c := p.claim(p.key("k"), lasting)
			if a := p.askWith(ctx, c, p.byLock(c)); !a.held || a.err != nil {
				p.fail("Lock of a free key, with a context that has no deadline, returned %v and the error %v.", a.held, a.err)
			}
			if err := p.handler.Release(ctx, c); err != nil {
				p.fail("Release, with a context that has no deadline, returned the error %v.", err)
			}
			p.mustBeFree(c.Key, "after its holder had released it, with a context that has no deadline")
		},
	},
}
