package memhandler

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/fanout"
	"github.com/lokilock/loki/internal/retry"
)

// Handler holds locks in memory. Expiry is judged by the monotonic clock, at the moment somebody asks.
//
// The zero value is ready for use, as is what [New] returns. It is safe for concurrent use and must not be copied.
type Handler struct {
	mu   sync.Mutex // never held while anything waits
	keys map[string]*record
	held queue     // the records with a claim, by its expiry
	past list.List // those without one, in the order in which their claims ended

	listeners fanout.Hub
}

var (
	_ loki.LockHandler   = (*Handler)(nil)
	_ loki.Granter       = (*Handler)(nil)
	_ loki.Extender      = (*Handler)(nil)
	_ loki.BatchExtender = (*Handler)(nil)
	_ loki.Releaser      = (*Handler)(nil)
	_ loki.Notifier      = (*Handler)(nil)
	_ loki.Inspector     = (*Handler)(nil)
	_ loki.Bounder       = (*Handler)(nil)
)

// New returns an empty store. Give the same one to every Locker that is to compete for the same locks.
func New() *Handler { return &Handler{} }

// Lock is [Handler.Grant] told in one word.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := h.Grant(ctx, c)
	return g.Held, err
}

// Grant records c if nobody else holds its key. It fails only if ctx has ended, or if c has no key, no token, an
// expiry that is not positive, or a fence after which there is none; then nothing is recorded.
//
// A claim that is granted again keeps its fence, unless [loki.Claim.Fence] has become larger: then that is its fence.
// A claim that comes back after its expiry, when nobody has taken the key, is a new grant with a new fence.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := check(ctx, c); err != nil {
		return loki.Grant{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	r := h.find(c.Key, now)
	switch {
	case r == nil:
		r = &record{key: c.Key}
		if h.keys == nil {
			h.keys = make(map[string]*record)
		}
		h.keys[c.Key] = r
		h.take(r, c, now)
	case r.heldBy(c.Token):
		h.renew(r, c, now)
	case r.claim.Token != "" && r.claim.Token != c.Supersedes:
		return loki.Grant{HeldBy: r.holder(now), Released: r.lastReleased(now)}, nil
	case r.fence == math.MaxInt64:
		return loki.Grant{}, fmt.Errorf("memhandler: no fence is left for the key %q: a claim brought the largest there is; use another key or a new store", c.Key)
	default:
		h.take(r, c, now)
	}
	return loki.Grant{Held: true, Fence: r.fence, Released: r.lastReleased(now)}, nil
}

// Extend renews c if it still holds. It fails as [Handler.Grant] does.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	if err := check(ctx, c); err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	r := h.find(c.Key, now)
	if !r.heldBy(c.Token) {
		return false, nil
	}
	h.renew(r, c, now)
	return true, nil
}

// ExtendAll is [Handler.Extend] of each claim. It fails only if ctx has ended.
func (h *Handler) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answers := make([]loki.Extended, len(claims))
	for i, c := range claims {
		answers[i].Held, answers[i].Err = h.Extend(ctx, c)
	}
	return answers, nil
}

// Bounds returns true: no method waits for anything.
func (h *Handler) Bounds() bool { return true }

// Release is [Handler.ReleaseHeld] for those who need not know.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	_, err := h.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld forgets c if it still holds, and reports whether it did. It notifies those who listen unless c is Quiet; the
// token of a mirrored claim is remembered for c.Expiry. It fails only if ctx has ended; then c is not released.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	r := h.find(c.Key, now)
	if !r.heldBy(c.Token) {
		return false, nil
	}
	if c.Mirrored {
		r.released, r.releasedUntil = c.Token, now.Add(retry.CeilMillisecond(c.Expiry))
	}
	h.end(r, now)
	if !c.Quiet {
		h.listeners.Wake(c.Key)
	}
	return true, nil
}

// Inspect says who holds key. It fails only if ctx has ended.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := ctx.Err(); err != nil {
		return loki.Holder{}, false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	r := h.find(key, now)
	if r == nil || r.claim.Token == "" {
		return loki.Holder{}, false, nil
	}
	return r.holder(now), true, nil
}

// Notify listens to key until ctx ends: the channel gets a value when a claim on key is released that is not Quiet, and
// when one is to expire earlier than before. It fails only if ctx has ended. The channel is never closed.
//
// What it needs is freed when ctx ends, by [context.AfterFunc]; a ctx that never ends keeps it.
func (h *Handler) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := h.listeners.Add(key)
	context.AfterFunc(ctx, func() { h.listeners.Remove(l) })
	return l.C, nil
}

// HeldKeys returns the keys that somebody holds now, sorted: what a test asserts to be empty in the end.
func (h *Handler) HeldKeys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var keys []string
	for _, r := range h.held {
		if now.Before(r.until) {
			keys = append(keys, r.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// ListenedKeys returns the keys that somebody listens to now, sorted: what a test waits for that wants a waiter to have
// come so far, and asserts to be empty in the end. A listener is gone a moment after its ctx ended.
func (h *Handler) ListenedKeys() []string { return h.listeners.Keys() }

// check refuses what could not be recorded as asked.
func check(ctx context.Context, c loki.Claim) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.Key == "":
		return errors.New("memhandler: the claim has no key")
	case c.Token == "":
		return fmt.Errorf("memhandler: the claim of %q has no token", c.Key)
	case c.Expiry <= 0:
		return fmt.Errorf("memhandler: the expiry of the claim of %q is %v, it must be positive", c.Key, c.Expiry)
	}
	return nil
}
