package memhandler

// This file lets the tests see how much is remembered.

// Remembered is the number of keys of which anything is known.
func (h *Handler) Remembered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.keys)
}

// Consistent says whether each record is in the one queue that it belongs to, where it thinks it is, and in order.
func (h *Handler) Consistent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held)+len(h.past) != len(h.keys) {
		return false
	}
	for isHeld, q := range map[bool]queue{true: h.held, false: h.past} {
		for i, r := range q {
			if h.keys[r.key] != r || r.place != i || (r.claim.Token != "") != isHeld || q.Less(i, (i-1)/2) {
				return false
			}
		}
	}
	return true
}

// Listeners is how many listen, to whatever key.
func (h *Handler) Listeners() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, who := range h.listening {
		n += len(who)
	}
	return n
}
