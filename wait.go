package loki

import (
	"context"
	"errors"
	"time"

	"github.com/lokilock/loki/internal/jitter"
)

// The pauses between two tries of a waiter, all jittered so that waiters do not march in step.
const (
	// firstPollPause and maxPollPause are those of a waiter that polls: each is half as long again as the one before.
	firstPollPause = 10 * time.Millisecond
	maxPollPause   = 250 * time.Millisecond

	// recheckPause is that of a waiter which the store's notifier wakes, in case a message was lost.
	recheckPause = 2 * time.Second

	// relistenPause is how long a notifier that could not listen is left alone before it is asked again.
	relistenPause = 10 * time.Second

	// expirySlack is how long after the holder's expiry a waiter asks: the store may be a moment late to forget.
	expirySlack = 2 * time.Millisecond
)

// wait asks the stores for the lock until they grant it, ctx or the limit ends, or no store answers.
func (l *Locker) wait(ctx context.Context, r request) (ls *Lease, err error) {
	w := l.gate.join(r.key)
	defer func() { l.gate.leave(r.key, w, err) }()

	var limit <-chan time.Time
	if !r.limit.IsZero() {
		timer := time.NewTimer(time.Until(r.limit))
		defer timer.Stop()
		limit = timer.C
	}
	poll := time.NewTimer(0) // set while this caller is the first in line and the store has said busy
	poll.Stop()
	defer poll.Stop()
	var frees <-chan struct{}
	for pause := firstPollPause; ; {
		select {
		case err := <-w.turn:
			if err != nil {
				return nil, err
			}
		case _, ok := <-frees:
			if !ok {
				frees = nil // the notifier has given up: poll
				l.gate.newsEnded(r.key)
			}
		case <-poll.C:
		case <-ctx.Done():
			return nil, l.waitOver(r.key, newEndedError(ctx, r.key))
		case <-limit:
			return nil, l.waitOver(r.key, nil)
		case <-l.closing:
			return nil, ErrClosed
		}
		if l.gate.busy(r.key) {
			continue // the end of that hold is the next turn
		}
		ls, err := l.ask(ctx, r)
		var busy *BusyError
		switch {
		case err == nil:
			l.hold(ls) // before the line moves on
			return ls, nil
		case errors.As(err, &busy):
			l.gate.answered(r.key, busy)
		case ctx.Err() != nil:
			return nil, l.waitOver(r.key, newEndedError(ctx, r.key))
		case limit != nil && !time.Now().Before(r.limit) && l.gate.told(r.key) != nil:
			return nil, l.waitOver(r.key, nil) // the limit cut the last try short; an earlier one was answered
		default:
			return nil, err
		}
		if frees == nil {
			n := l.gate.news(r.key, func() *news { return l.primary.listen(ctx, r.key, untilLimit(r.limit)) })
			if n != nil && n.frees != nil && !n.ended { // what was freed before it listened is found by asking once more
				frees = n.frees
				poll.Reset(0)
				continue
			}
		}
		if frees == nil {
			poll.Reset(jitter.Around(pause))
			pause = min(pause*3/2, maxPollPause)
			continue
		}
		next := jitter.Around(recheckPause)
		if left := busy.Holder.Left; left > 0 && left < next { // the holder may have crashed
			next = left + expirySlack + jitter.UpTo(expirySlack)
		}
		poll.Reset(next)
	}
}

// waitOver is what a wait comes to that was not granted: busy if anybody was told so, and why it ended.
func (l *Locker) waitOver(key string, ended error) error {
	told := l.gate.told(key)
	switch {
	case told != nil && ended == nil:
		ended = errWaitOver
		fallthrough
	case told != nil:
		return &BusyError{Key: key, Holder: told.Holder, err: ended}
	case ended != nil:
		return ended
	}
	return &unavailableError{key: key, errs: errUnanswered, impatient: true}
}

var (
	errWaitOver   = errors.New("the limit of the wait is over")
	errUnanswered = errors.New("the limit of the wait is over, and no store had answered by then")
)

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
