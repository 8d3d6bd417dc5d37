// Package fanout wakes many who listen for the same thing.
//
// A wake-up says only that it is worth looking. So each listener has a channel with room for one value: a second one
// before the first is read would say nothing new, and nobody who wakes others ever waits for them. It does not know where
// wake-ups come from, nor when a listener has had enough.
package fanout

import (
	"maps"
	"slices"
	"sync"
)

// Hub is the listeners of any number of keys. The zero value has none and is ready for use. Its methods are safe for
// concurrent use and never block, so a caller may hold a mutex of its own.
type Hub struct {
	mu     sync.Mutex // guards what follows; nothing is waited for with it held
	keys   map[string]map[*Listener]struct{}
	count  int
	closed bool
}

// Listener is one that listens to one key.
type Listener struct {
	// C gets a value when the key is woken, unless there is one to read already. It is closed by [Hub.Close] only.
	C <-chan struct{}

	key  string
	wake chan struct{}
}

// Add makes a listener of key. One that comes after [Hub.Close] finds its channel closed.
func (h *Hub) Add(key string) *Listener {
	wake := make(chan struct{}, 1)
	l := &Listener{C: wake, key: key, wake: wake}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(wake)
		return l
	}
	if h.keys == nil {
		h.keys = make(map[string]map[*Listener]struct{})
	}
	if h.keys[key] == nil {
		h.keys[key] = make(map[*Listener]struct{})
	}
	h.keys[key][l] = struct{}{}
	h.count++
	return l
}

// Remove takes l out of the hub. It reports whether l was the last listener of its key; if l is not in the hub, it does
// nothing and reports false.
func (h *Hub) Remove(l *Listener) (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.keys[l.key]
	if _, listens := all[l]; !listens {
		return false
	}
	h.count--
	if delete(all, l); len(all) > 0 {
		return false
	}
	delete(h.keys, l.key)
	return true
}

// Wake wakes the listeners of key.
func (h *Hub) Wake(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wake(h.keys[key])
}

// WakeAll wakes all listeners, as when something may have been missed.
func (h *Hub) WakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, all := range h.keys {
		wake(all)
	}
}

func wake(all map[*Listener]struct{}) {
	for l := range all {
		select {
		case l.wake <- struct{}{}:
		default: // it has one to read
		}
	}
}

// Close closes the channel of every listener: there will be no more wake-ups. A value that is in a channel can still be
// read. Close may be called again.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, all := range h.keys {
		for l := range all {
			close(l.wake)
		}
	}
	h.keys, h.count, h.closed = nil, 0, true
}

// Len returns how many listen, to whatever key.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// Keys returns the keys that have listeners, sorted.
func (h *Hub) Keys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.keys))
}
