package simulation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/retry"
)

// finale sees, when the schedule is over, that a fleet without faults does what it is for, and that slow stores do not
// keep it from it.
func (w *world) finale(ctx context.Context) error {
	if err := w.happens(ctx, Event{What: calm}); err != nil {
		return err
	}
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	time.Sleep(max(2*longestBreak, held+w.settles()-w.now())) // an outage's last request, or a hold's, and a breaker that has just opened
	w.requireLively(ctx)
	if w.schedule.Ends != fine {
		if err := w.requireProgress(ctx); err != nil {
			return err
		}
	}
	if w.schedule.Mode == Async {
		return w.requireTrust(ctx)
	}
	return nil
}

// requireLively sees that, with no fault left, a free key is acquired by the next caller within one expiry, through the
// primary.
func (w *world) requireLively(ctx context.Context) {
	for id := range instances {
		p := w.process(id)
		var out loki.Outcome
		err := p.locker.ExecuteWithinLock(ctx, w.schedule.Expiry, func(context.Context) error { return nil },
			loki.WithWait(w.schedule.Expiry+latest), loki.WithOutcome(&out))
		switch {
		case err != nil:
			w.breach("%s could not have the lock although all was well: %v", p.name, err)
		case string(out.Store) != storeNames[primary]:
			w.breach("%s had the lock from the %s although all was well", p.name, out.Store)
		}
	}
}

// requireProgress sees that of instances that contend one runs, however slow the stores are, as long as they answer within
// their time.
func (w *world) requireProgress(ctx context.Context) error {
	for at := range w.process(0).wires {
		if err := w.happens(ctx, Event{What: link, Store: at, Instance: everybody, Weather: w.schedule.Ends, salt: w.schedule.Seed}); err != nil {
			return err
		}
	}
	const slowness = 4 * loki.DefaultSecondaryTimeout // a request to each store, and a release of what came before
	start := w.now()
	limit := 2*w.schedule.Expiry + slowness
	var contenders sync.WaitGroup
	ran, stop := context.WithCancel(ctx)
	defer stop()
	for id := range instances {
		p := w.process(id)
		contenders.Go(func() {
			for ran.Err() == nil && w.now() < start+limit {
				err := p.locker.ExecuteWithinLock(ctx, w.schedule.Expiry, func(context.Context) error {
					stop()
					return nil
				}, loki.WithWait(time.Duration(id)*w.schedule.Expiry/8))
				w.tell("%s has contended: %v", p.name, err)
				retry.Sleep(ran, time.Second)
			}
		})
	}
	contenders.Wait()
	if ran.Err() == nil {
		w.breach("nobody ran for %v, although every store answers in its time, if slowly", limit)
	}
	if err := w.happens(ctx, Event{What: calm}); err != nil {
		return err
	}
	time.Sleep(2*longestBreak + loki.DefaultSecondaryTimeout) // in which the last requests return
	return nil
}

// requireTrust sees that a key is not suspect for ever: long after the last fault an acquisition does not wait for a
// secondary that hangs, neither of a key that was in use then nor of a new one.
func (w *world) requireTrust(ctx context.Context) error {
	time.Sleep(2*w.schedule.Expiry + w.settles())
	for id := range instances {
		for n, resource := range []string{"", fmt.Sprintf("new%d", id)} {
			if err := w.happens(ctx, Event{What: link, Store: secondary, Instance: everybody, Weather: hole, salt: w.schedule.Seed}); err != nil {
				return err
			}
			p := w.process(id)
			var opts []loki.Option
			if n > 0 {
				opts = append(opts, loki.WithResource(resource))
			}
			var out loki.Outcome
			err := p.locker.ExecuteWithinLock(ctx, w.schedule.Expiry, func(context.Context) error { return nil }, append(opts, loki.WithOutcome(&out))...)
			if limit := w.roundTrip(primary); err != nil || out.Waited > limit {
				w.breach("%s waited %v for a lock, long after the last fault, because the secondary hangs: %v", p.name, out.Waited, err)
			}
			if err := w.happens(ctx, Event{What: calm}); err != nil {
				return err
			}
			time.Sleep(2*w.schedule.Expiry + w.settles())
		}
	}
	return nil
}
