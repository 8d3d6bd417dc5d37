package sqlhandler

import (
	"context"
	"database/sql"
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

// freshTime is for how long a connection that has answered is not taken for dead. pgx trusts one for as long.
const freshTime = time.Second

// keptTime is for how long a second attempt finds the answer of the first, if it is as late as that answer. Anything else that
// is sent for the claim replaces it.
const keptTime = 100 * time.Millisecond

// errFollowed is what a first attempt ends with whose connection the second one needs.
var errFollowed error = followedError{}

type followedError struct{}

func (followedError) Error() string {
	return "gave up its connection, which had been idle and did not answer: the pool had no other for the second attempt of this call"
}

// Is makes it the end of a context, so that what the second attempt ended with counts.
func (followedError) Is(target error) bool { return target == context.Canceled }

// traffic is what a handler has under way.
type traffic struct {
	db *sql.DB

	sized     sync.Once // at the first call, when the pool has its settings
	acquiring chan struct{}
	holding   chan struct{}

	logins *logins

	mu       sync.Mutex                           // guards what follows, and the slots of attempts
	attempts map[attemptKey]*attempt              // the latest of each claim that is no second one
	fresh    [maxAcquiring + maxHolding]freshConn // the connections that have answered last

	discarding sync.Mutex // held by whoever discards
	discarded  time.Time  // when that was done last

	keepsIdle atomic.Bool // an idle connection has been seen in the pool
}

type attemptKey struct{ key, token string }

// attempt is one of the two that a call of the store may consist of; see [loki.Claim.Repeated].
type attempt struct {
	traffic *traffic
	key     attemptKey
	op      string
	call    <-chan struct{} // closed at the end of the caller's context, which both attempts of a call have in common
	ctx     context.Context //nolint:containedctx // it is the attempt's, which the second attempt ends
	cancel  context.CancelCauseFunc
	slot    chan struct{} // where it has a place; nil when it has none or has handed it over

	started  chan struct{} // closed once it has had a slot
	since    time.Time     // when that was
	ended    chan struct{} // closed when it has ended
	sent     bool          // whether it has had a connection: what a driver says of a statement afterwards is not relied on
	answered bool          // whether it was answered
	answer   loki.Grant    // with what

	first    *attempt                      // the one that this one follows; nil if there is none
	followed atomic.Bool                   // set once a second one has followed, whose statement may have been sent
	holds    atomic.Bool                   // whether it has one of the pool's connections, or is about to
	idled    atomic.Bool                   // whether that may be one that was idle for so long that it died
	opening  atomic.Pointer[chan struct{}] // closed once the new connection that it asked for is there; nil if it asked for none
	cold     atomic.Bool                   // its connection is new, and has answered no statement yet
	probe    bool                          // the pool that connections come from is not database/sql's alone
}

func newTraffic(db *sql.DB) *traffic {
	t := &traffic{db: db, attempts: make(map[attemptKey]*attempt)}
	t.logins = newLogins(t)
	return t
}

// begin waits until another statement may be under way. A second attempt takes the place of the first, and sees to it that
// no connection which was idle is used. If the first is answered meanwhile, the second has ended with the same answer when
// begin returns: it need not send anything, and an error would make the outcome unknown.
func (t *traffic) begin(ctx context.Context, op string, c loki.Claim) (*attempt, error) {
	a := &attempt{traffic: t, key: attemptKey{c.Key, c.Token}, op: op, call: ctx.Done(), started: make(chan struct{}), ended: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	err := ctx.Err()
	if err == nil && c.Repeated {
		err = a.follow(ctx)
	} else if err == nil {
		t.mu.Lock()
		t.attempts[a.key] = a
		t.mu.Unlock()
	}
	if err == nil && a.slot == nil && !a.answered {
		err = a.queue(ctx)
	}
	if err != nil || a.answered {
		return a, a.end(err)
	}
	a.since = time.Now()
	close(a.started)
	if !c.Repeated {
		return a, nil
	}
	a.discardIdle(ctx)
	if a.first != nil {
		if err := a.makeRoom(ctx); err != nil || a.answered {
			return a, a.end(err)
		}
		a.first.followed.Store(true)
	}
	return a, nil
}

// queue waits for a slot.
func (a *attempt) queue(ctx context.Context) error {
	t := a.traffic
	t.sized.Do(func() {
		most := maxAcquiring
		if limit := t.db.Stats().MaxOpenConnections; limit > 0 {
			most = min(most, max(1, limit-1))
		}
		t.acquiring, t.holding = make(chan struct{}, most), make(chan struct{}, maxHolding)
	})
	slots, what := t.acquiring, "acquisitions"
	if a.purpose() == toHold {
		slots, what = t.holding, "renewals and releases"
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
		return &noConnection{why: fmt.Sprintf("not sent within %v: all places for %s were taken all the time (this handler has %d for acquisitions and %d for renewals and releases, "+
			"each with two connections where a call is sent a second time; the application has the rest; %s)",
			time.Since(begun).Round(time.Millisecond), what, cap(t.acquiring), cap(t.holding), stats(t.db))}
	}
}

// follow takes the place of the first attempt, once that has been silent for as long as the caller waited before this
// attempt, a third of what this one has. Time that the first spends in the queue is no silence: under load a healthy
// pool would be discarded for it. Nor is time that it spends on a new connection, from the login until the first answer:
// another one beside it gets no answer sooner, and a server that comes back to twice as many connections may never catch up.
func (a *attempt) follow(ctx context.Context) error {
	t := a.traffic
	t.mu.Lock()
	first := t.attempts[a.key]
	if first != nil && (first.op != a.op || first.isOver() && (a.call == nil || first.call != a.call)) {
		if first.isOver() {
			delete(t.attempts, a.key)
		}
		first = nil // it is of another call
	}
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
		for waited := false; ; waited = true {
			select {
			case <-timer.C:
			case <-first.ended:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
			if first.cold.Load() {
				select {
				case <-first.ended:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			opening := first.opening.Load()
			if opening == nil || waited {
				return nil
			}
			select {
			case <-*opening:
				timer.Reset(patience)
			case <-first.ended:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if err := silent(); err != nil {
		return err
	}
	select {
	case <-first.ended:
		a.share(first)
		return nil
	default:
	}
	a.first = first
	t.mu.Lock()
	a.slot, first.slot = first.slot, nil
	t.mu.Unlock()
	return nil
}

// end gives the slot back. It returns what err means for the caller.
func (a *attempt) end(err error) error {
	t := a.traffic
	t.mu.Lock()
	slot := a.slot
	a.slot = nil
	if t.attempts[a.key] == a && err == nil {
		time.AfterFunc(keptTime, a.forget)
	} else if t.attempts[a.key] == a {
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

// forget ends what a second attempt can find of a.
func (a *attempt) forget() {
	t := a.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempts[a.key] == a {
		delete(t.attempts, a.key)
	}
}
