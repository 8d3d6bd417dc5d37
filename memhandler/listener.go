package memhandler

// This file is who listens to which key, and how they are told without anybody waiting for them.

import (
	"context"
	"maps"
	"slices"
)

// listeners are those of one key. Each is a channel that holds one value: a second one before the first is read would
// say nothing new, and to send it would wait for a reader.
type listeners map[chan struct{}]struct{}

// Notify listens to key until ctx ends: the channel gets a value when a claim on key is released that is not Quiet, and
// when one is to expire earlier than before. It fails only if ctx has ended. The channel is never closed.
//
// What it needs is given back when ctx ends, by [context.AfterFunc]; a ctx that never ends keeps it.
func (h *Handler) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	frees := make(chan struct{}, 1)
	h.listen(key, frees)
	// With the mutex released: a ctx may be of anybody's making, and AfterFunc calls it.
	context.AfterFunc(ctx, func() { h.leave(key, frees) })
	return frees, nil
}

func (h *Handler) listen(key string, frees chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listening == nil {
		h.listening = make(map[string]listeners)
	}
	if h.listening[key] == nil {
		h.listening[key] = make(listeners)
	}
	h.listening[key][frees] = struct{}{}
}

func (h *Handler) leave(key string, frees chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listening[key], frees)
	if len(h.listening[key]) == 0 {
		delete(h.listening, key)
	}
}

// tell is called with mu held, and does not wait: a channel that is full has been told already.
func (h *Handler) tell(key string) {
	for frees := range h.listening[key] {
		select {
		case frees <- struct{}{}:
		default:
		}
	}
}

// ListenedKeys returns the keys that somebody listens to now, sorted: what a test waits for that wants a waiter to have
// come so far, and asserts to be empty in the end. A listener is gone a moment after its ctx ended.
func (h *Handler) ListenedKeys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.listening))
}
