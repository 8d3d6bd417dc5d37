package sqlhandler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

// The most statements that a handler has under way at once, each on a connection of its own, however many callers there
// are. Commits share a write to the log's disk, so more sessions than this gain little: at 5 ms each, 16 acquire 3,200
// locks a second. The two limits are apart, so that acquisitions never keep a lock that is held from being renewed.
const (
	maxAcquiring = 16 // Lock and Grant; fewer than the pool's limit, if that is smaller
	maxHolding   = 8  // Extend and Release
)

// discardTime is what one idle connection may take to be discarded. Drivers ask a connection that was idle for a sign of life
// before they hand it over, which a dead one does not give.
const discardTime = 2 * time.Millisecond

var (
	// They match the end of a context, so that what the other attempt ended with counts.
	errFollowed = fmt.Errorf("given up, since the second attempt of this call needs the connection: %w", context.Canceled)
	errAnswered = fmt.Errorf("not sent, since the first attempt of this call has been answered: %w", context.Canceled)
)

// traffic is what a handler has under way.
type traffic struct {
	db *sql.DB

	sized     sync.Once // at the first call, when the pool has its settings
	acquiring chan struct{}
	holding   chan struct{}

	mu       sync.Mutex // guards first, and the slots of attempts
	attempts map[attemptKey]*attempt

	discarding sync.Mutex // held by whoever discards
	discarded  time.Time  // when that was done last
}

type attemptKey struct{ op, key, token string }

// attempt is one of the two that a call of the store may consist of; see [loki.Claim.Repeated].
type attempt struct {
	traffic *traffic
	key     attemptKey
	ctx     context.Context //nolint:containedctx // it is the attempt's, which the second attempt ends
	cancel  context.CancelCauseFunc
	slot    chan struct{} // where it has a place; nil when it has none or has handed it over

	started  chan struct{} // closed once it has had a slot
	since    time.Time     // when that was
	ended    chan struct{} // closed when it has ended
	answered bool          // what that came to

	first    *attempt    // the one that this one follows; nil if there is none
	followed atomic.Bool // set once a second one has followed, whose statement may have been sent
	holds    atomic.Bool // whether it has one of the pool's connections, or is about to
	probe    bool        // the pool that connections come from is not database/sql's alone
}

func newTraffic(db *sql.DB) *traffic {
	return &traffic{db: db, attempts: make(map[attemptKey]*attempt)}
}

// begin waits until another statement may be under way. A second attempt takes the place of the first, and sees to it that
// no connection which was idle is used.
func (t *traffic) begin(ctx context.Context, op string, c loki.Claim) (*attempt, error) {
	a := &attempt{traffic: t, key: attemptKey{op, c.Key, c.Token}, started: make(chan struct{}), ended: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	err := ctx.Err()
	if err == nil && c.Repeated {
		err = a.follow(ctx)
	} else if err == nil {
		t.mu.Lock()
		t.attempts[a.key] = a
		t.mu.Unlock()
	}
	if err == nil && a.slot == nil {
		err = a.queue(ctx, op)
	}
	if err != nil {
		return nil, a.end(err)
	}
	a.since = time.Now()
	close(a.started)
	if c.Repeated {
		a.leaveTheDead(ctx)
	}
	return a, nil
}

// queue waits for a slot.
func (a *attempt) queue(ctx context.Context, op string) error {
	t := a.traffic
	t.sized.Do(func() {
		most := maxAcquiring
		if limit := t.db.Stats().MaxOpenConnections; limit > 0 {
			most = min(most, max(1, limit-1))
		}
		t.acquiring, t.holding = make(chan struct{}, most), make(chan struct{}, maxHolding)
	})
	slots := t.acquiring
	if op == "extend" || op == "release" {
		slots = t.holding
	}
	select {
	case slots <- struct{}{}:
		a.slot = slots
		return nil
	default:
	}
	begun := time.Now()
	until, cancel := beforeEnd(ctx)
	defer cancel()
	select {
	case slots <- struct{}{}:
		a.slot = slots
		return nil
	case <-until.Done():
		return &noConnection{fmt.Sprintf("not sent within %v: this handler had %d such statements under way all the time, as many as it may (%s)",
			time.Since(begun).Round(time.Millisecond), cap(slots), stats(t.db))}
	}
}

// follow takes the place of the first attempt, once that has been silent for as long as the caller waited before this
// attempt, a third of what this one has. Time that the first spends in the queue is no silence: under load a healthy
// pool would be discarded for it.
func (a *attempt) follow(ctx context.Context) error {
	t := a.traffic
	t.mu.Lock()
	first := t.attempts[a.key]
	t.mu.Unlock()
	if first == nil {
		return nil
	}
	var patience time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 3
	}
	silent := func() error {
		select {
		case <-first.started:
		case <-first.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		timer := time.NewTimer(patience - time.Since(first.since))
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-first.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := silent(); err != nil {
		return err
	}
	select {
	case <-first.ended:
		if first.answered {
			return errAnswered
		}
		return nil
	default:
	}
	a.first = first
	first.followed.Store(true)
	t.mu.Lock()
	a.slot, first.slot = first.slot, nil
	t.mu.Unlock()
	return nil
}

// leaveTheDead discards the connections that are idle: what killed one of them in silence, as a NAT that forgets does, has
// usually killed all. If the pool may have no more, the first attempt gives up its own.
func (a *attempt) leaveTheDead(ctx context.Context) {
	t := a.traffic
	before := t.db.Stats()
	a.probe = before.Idle == 0 && before.MaxIdleClosed > 0
	t.discarding.Lock()
	// Those that are idle now have answered since, if others have been discarded while the first attempt was silent.
	if a.first == nil || t.discarded.Before(a.first.since) {
		for range 2 * before.Idle {
			if ctx.Err() != nil || t.db.Stats().Idle == 0 {
				break
			}
			t.discard(ctx)
		}
		t.discarded = time.Now()
	}
	t.discarding.Unlock()
	if a.first != nil && a.first.holds.Load() && isFull(t.db.Stats()) {
		a.first.cancel(errFollowed)
	}
}

// discard closes an idle connection without waiting for the network.
func (t *traffic) discard(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, discardTime)
	defer cancel()
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return // a driver that waited for a sign of life has closed it
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// end gives the slot back. It returns what err means for the caller.
func (a *attempt) end(err error) error {
	t := a.traffic
	t.mu.Lock()
	slot := a.slot
	a.slot = nil
	if t.attempts[a.key] == a {
		delete(t.attempts, a.key)
	}
	t.mu.Unlock()
	if slot != nil {
		<-slot
	}
	if err != nil && errors.Is(context.Cause(a.ctx), errFollowed) {
		err = errFollowed
	}
	a.answered = err == nil
	close(a.ended)
	a.cancel(nil)
	return err
}
