package loki

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

// A primary that is down must not make every call slow: after a failure it is asked less. These are the pauses between
// two probes of a store that failed, jittered by an eighth; each is twice as long as the one before. Until a probe is
// answered, acquisitions go to the secondary at once. Since another instance may see the primary up in that time,
// BreakerMaxPause is part of the bound on the overlap of two closures under [MirrorAsync].
const (
	BreakerMinPause = 100 * time.Millisecond
	BreakerMaxPause = 3 * time.Second
)

// refusal is the circuit breaker: it returns why an acquisition of key should bypass the store, or nil. It is open for a
// key from its failure until a call about it, a probe for example, is answered; and for every key when several failed
// in a row. Renewals and releases try the store anyway.
//
// Without another store it is always closed: a caller that cannot go elsewhere is better off with an attempt.
func (h *health) refusal(key string) error {
	if h.other == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing[everyKey] == nil && !h.failing[key].open() {
		return nil
	}
	h.last = key
	return Unavailable(fmt.Errorf("not asked, since a moment ago it failed: %w", h.err))
}

// bypassed counts an acquisition that the breaker has kept from the store.
func (h *health) bypassed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
}

// probeLater sets the next probe of a key that failed. It is called with mu held.
func (h *health) probeLater(ctx context.Context, key string, f *failure) {
	f.timer = time.AfterFunc(retry.Around(f.pause), func() { h.probe(ctx, key, f) })
	f.pause = min(2*f.pause, BreakerMaxPause)
}

// probe asks the store in the background, so that no caller has to wait to find out that it is back. What it comes to is
// noted like any other call.
func (h *health) probe(ctx context.Context, key string, f *failure) {
	h.mu.Lock()
	about := key
	if key == everyKey {
		about = h.last
	}
	h.mu.Unlock()
	h.store.probe(ctx, about)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing[key] == f && f.open() && !h.ended {
		h.probeLater(ctx, key, f)
	}
}

// handlersOwn is a store's error without the Locker's words around it, which would be said twice.
func handlersOwn(err error) error {
	if wrapped, ok := errors.AsType[*HandlerError](err); ok {
		return wrapped.Err
	}
	return err
}
