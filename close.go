package loki

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Close ends the Locker's work. From then on calls return [ErrClosed], waiting ones too, and leases from
// [Locker.Acquire] are ended with that cause and released. Close waits for running closures, whose locks are still
// renewed, then for the first attempt of every release and rollback, then for the observer. It waits as long as ctx
// lasts, and whatever ctx says for the time that one call of each store may take: a service that was asked to stop has a
// context that has ended, and exits when Close returns. Retries and minimum holds are not waited for. A request that a
// handler has not returned from, for all its deadline, is waited for up to half a minute, because the release that has to
// follow it would be lost. That is so after a connection died in silence: go-redis with its default settings returns after
// some four seconds if the server can be reached over another connection, and after sixteen if it cannot. A grace period
// after SIGTERM should leave time for that, or ctx a deadline.
//
// Giving up stops nothing: Close returns an error that matches ctx's, and may be called again. Called with the context
// of a running closure it returns an error instead of waiting for itself. Handlers and their clients stay open.
func (l *Locker) Close(ctx context.Context) error {
	if l == nil || l.primary == nil {
		return errNoLocker
	}
	if ctx == nil {
		return errNilContext
	}
	for ls, _ := LeaseFromContext(ctx); ls != nil; ls = ls.parent {
		if ls.locker == l && ls.running.Load() {
			return fmt.Errorf("loki: Close was called inside the closure that holds %q, and would wait for it forever: call it after the closure has returned", ls.claim.Key)
		}
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	leases := make([]*Lease, 0, len(l.leases))
	for ls := range l.leases {
		leases = append(leases, ls)
	}
	l.mu.Unlock()
	for _, ls := range leases {
		if ls.finish(ErrClosed) {
			l.settleLater(ls)
		}
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.patience())
	defer cancel()
	wait := func(wait func(context.Context) error) error {
		if wait(patient) == nil {
			return nil
		}
		return wait(ctx)
	}
	if err := wait(l.calls.wait); err != nil {
		return fmt.Errorf("loki: Close gave up while %d calls were still running: %w", l.calls.count(), err)
	}
	if err := wait(l.background.wait); err != nil {
		return fmt.Errorf("loki: Close gave up while %d releases had not been answered: %w", l.background.count(), err)
	}
	l.primary.health.end(ctx)
	if l.secondary != nil {
		l.secondary.health.end(ctx)
	}
	if err := wait(l.events.flush); err != nil {
		return fmt.Errorf("loki: Close gave up while the observer was still busy: %w", err)
	}
	return nil
}

// patience is how long Close waits whatever its context says: for a release in each store.
func (l *Locker) patience() time.Duration {
	if l.secondary == nil {
		return l.primary.timeout
	}
	return l.primary.timeout + l.secondary.timeout
}

// forget takes a lease off the list of those that Close has to end.
func (l *Locker) forget(ls *Lease) {
	if ls.closure {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leases, ls)
}

// enter counts a call in, or reports false because the Locker is closed.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls.add(1)
	return true
}

// tally counts what is under way, and lets Close wait for none. A WaitGroup cannot be waited for with a context, and
// must not grow while it is waited for.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed and set to nil when n comes to 0
}

func (t *tally) add(delta int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += delta
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) wait(ctx context.Context) error {
	for {
		t.mu.Lock()
		if t.n == 0 {
			t.mu.Unlock()
			return nil
		}
		if t.zero == nil {
			t.zero = make(chan struct{})
		}
		zero := t.zero
		t.mu.Unlock()
		select {
		case <-zero:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}
