package memhandler

const (
	RememberFor  = rememberFor
	RememberKeys = rememberKeys
)

// Remembered returns the number of keys of which anything is known.
func (h *Handler) Remembered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.keys)
}

// Consistent reports whether each record is where it belongs, once, and in order.
func (h *Handler) Consistent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held)+h.past.Len() != len(h.keys) {
		return false
	}
	for i, r := range h.held {
		if h.keys[r.key] != r || r.place != i || r.past != nil || r.claim.Token == "" || h.held.Less(i, (i-1)/2) {
			return false
		}
	}
	for e := h.past.Front(); e != nil; e = e.Next() {
		if r := e.Value.(*record); h.keys[r.key] != r || r.past != e || r.claim.Token != "" {
			return false
		}
	}
	return true
}

// Listeners returns how many listen, to whatever key.
func (h *Handler) Listeners() int { return h.listeners.Len() }
