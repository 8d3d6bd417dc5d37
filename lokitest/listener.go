package lokitest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki"
)

// shortly is how long to wait for what may happen or not.
const shortly = 50 * time.Millisecond

// listener is what a call of Notify brought.
type listener struct {
	key   string
	frees <-chan struct{}
	stop  context.CancelFunc
}

// notify listens to key until stop is called, or ctx ends.
func (p *probe) notify(ctx context.Context, key string) (listener, error) {
	ctx, stop := context.WithCancel(ctx)
	late := time.AfterFunc(callTimeout, stop) // not a deadline: that would end the listening, too
	frees, err := p.handler.(loki.Notifier).Notify(ctx, key)
	if !late.Stop() {
		err = errors.Join(fmt.Errorf("Notify did not return within %v", callTimeout), err)
	}
	return listener{key, frees, stop}, err
}

// listen listens to key until stop is called, or the experiment is over.
func (p *probe) listen(key string) listener {
	l, err := p.notify(p.ctx, key)
	p.mustAnswer("Notify", key, err)
	if l.frees == nil {
		p.fail("Notify of %q returned no channel and no error.", key)
	}
	return l
}

// next waits for a value; closed says that there will be none.
func (l listener) next(within time.Duration) (told, closed bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case _, open := <-l.frees:
		return open, !open
	case <-timer.C:
	}
	select { // both may have been ready
	case _, open := <-l.frees:
		return open, !open
	default:
		return false, false
	}
}

// told is next for one whose context has not ended: no store that is healthy closes its channel.
func (p *probe) told(l listener, within time.Duration) bool {
	told, closed := l.next(within)
	if closed {
		p.fail("the channel of one who listens to %q was closed, by a store that should be healthy.", l.key)
	}
	return told
}

// mustBeTold demands that each listener is told when event happens, which of names.
func (p *probe) mustBeTold(of string, event func(), listeners ...listener) {
	for _, l := range listeners {
		for p.told(l, 0) { // what is told from now on is news
		}
	}
	event()
	for _, l := range listeners {
		if !p.told(l, callTimeout) {
			p.fail("nothing was told to one who listens to %q within %v of this: %s.", l.key, callTimeout, of)
		}
	}
}

// tellsStill reports whether l, whose context has ended, is told of a release. Its channel may have been closed.
func (p *probe) tellsStill(l listener) bool {
	for told := true; told; { // before the end
		told, _ = l.next(0)
	}
	c, _ := p.take(l.key, lasting)
	p.release(c)
	told, _ := l.next(shortly)
	return told
}
