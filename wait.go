package loki

import (
	"context"
	"errors"
	"time"

	"github.com/lokilock/loki/internal/retry"
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

// wait tries to acquire the lock until a store grants it, ctx or the wait's limit ends, or no store is available.
//
// The limit bounds the waiting, never an attempt: one that has begun is completed, and a caller that knows nothing of the
// key when its limit ends makes the attempt that a call without a wait would have made. So busy is returned only where a
// holder is known, and unavailable only where a store failed.
func (l *Locker) wait(ctx context.Context, r request) (ls *Lease, err error) {
	w := l.gate.join(r.key)
	defer func() { l.gate.leave(r.key, w, err, l.primaryLimit(ctx, r.expiry) >= l.primary.timeout) }()

	var limit <-chan time.Time
	if !r.limit.IsZero() {
		timer := time.NewTimer(time.Until(r.limit))
		defer timer.Stop()
		limit = timer.C
	}
	over := func() bool { return limit != nil && !time.Now().Before(r.limit) }
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
			return nil, l.waitEnded(ctx, r.key)
		case <-limit:
		case <-l.closing:
			return nil, ErrClosed
		}
		if known := l.gate.known(r.key); known != nil && over() {
			return nil, &BusyError{Key: r.key, Holder: *known, err: errWaitOver}
		}
		if l.gate.busy(r.key) {
			continue // the end of that hold is the next turn
		}
		ls, err := l.ask(ctx, r)
		if err == nil {
			l.hold(ls) // before the line moves on
			return ls, nil
		}
		busy, ok := errors.AsType[*BusyError](err)
		if ok {
			l.gate.learn(r.key, busy.Holder)
		}
		switch {
		case ctx.Err() != nil:
			return nil, l.waitEnded(ctx, r.key)
		case isCutShort(err) && l.gate.known(r.key) != nil: // no news of the holder
			poll.Reset(retry.Around(pause))
			continue
		case !ok || over():
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
			poll.Reset(retry.Around(pause))
			pause = min(pause*3/2, maxPollPause)
			continue
		}
		next := retry.Around(recheckPause)
		if left := busy.Holder.Left; left > 0 && left < next { // the holder may have crashed
			next = left + expirySlack + retry.UpTo(expirySlack)
		}
		poll.Reset(next)
	}
}

// waitEnded returns the error of a wait whose ctx has ended: busy as well, if it was queued behind a known holder.
func (l *Locker) waitEnded(ctx context.Context, key string) error {
	if known := l.gate.known(key); known != nil {
		return &BusyError{Key: key, Holder: *known, err: ended(ctx)}
	}
	return newEndedError(ctx, key)
}

var errWaitOver = errors.New("the limit of the wait is over")

// untilLimit returns what is left of a wait.
func untilLimit(limit time.Time) time.Duration {
	if limit.IsZero() {
		return noLimit
	}
	return time.Until(limit)
}

const noLimit = time.Duration(1<<63 - 1)
