package sqlhandler

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"
)

func (a *attempt) isOver() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// share makes the answer of an attempt that has ended a's own, if there was one.
func (a *attempt) share(first *attempt) { a.answered, a.answer = first.answered, first.answer }

// discardIdle closes the connections that are idle: what killed one of them in silence, as a NAT that forgets does, has
// usually killed all.
func (a *attempt) discardIdle(ctx context.Context) {
	t := a.traffic
	before := t.db.Stats()
	t.sees(before)
	a.probe = before.Idle == 0 && before.MaxIdleClosed > 0 && !t.keepsIdle.Load()
	t.discarding.Lock()
	defer t.discarding.Unlock()
	// Those that are idle now have answered since, or not long ago. A pool that is slow would never recover if each call
	// that it keeps waiting cost it all connections.
	if a.first != nil && !t.discarded.Before(a.first.since) || time.Since(t.discarded) < freshTime {
		return
	}
	for range 3 { // others give connections back meanwhile, and a busy machine is late
		idle := t.db.Stats().Idle
		if ctx.Err() != nil || idle == 0 {
			break
		}
		var side sync.WaitGroup // one after the other, 250 of them would take a call's time
		for range idle {
			side.Go(func() { t.discardOne(ctx) })
		}
		side.Wait()
	}
	t.discarded = time.Now()
}

// makeRoom waits, if the pool may have no more connections, until it may, or the first attempt has ended. That one gives
// up its own connection only if it is likely dead. One that was new, or has answered just before, is not: then the
// database is slow, and a statement that began anew would have less time.
func (a *attempt) makeRoom(ctx context.Context) error {
	tick := time.NewTicker(probeTime)
	defer tick.Stop()
	for {
		select {
		case <-a.first.ended:
			a.share(a.first)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		if !a.first.holds.Load() || !isFull(a.traffic.db.Stats()) {
			return nil
		}
		if a.first.idled.Load() {
			a.first.cancel(errFollowed)
			return nil
		}
		select {
		case <-a.first.ended:
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// discardOne closes an idle connection without waiting for the network.
func (t *traffic) discardOne(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, discardTime)
	defer cancel()
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return // a driver that waited for a sign of life has closed it
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
