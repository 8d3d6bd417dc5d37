package loki

import "time"

// record is what is known of a lease's claim in one store.
type record struct {
	may     bool            // a request to record it was sent: it has to be released there
	unsure  bool            // the outcome of such a request is not known
	stands  bool            // the store's latest answer was that it holds
	silent  bool            // the store did not answer the latest request
	until   time.Time       // the end of that answer's window
	forgets time.Time       // from when on the store has forgotten it by itself, whatever happened
	left    <-chan struct{} // closed when every request that was left behind has returned; nil if none was
}

// note takes an answer to a request that may have recorded the claim for expiry, or only extended it: then there is
// nothing unsure about a failure, since what is extended was recorded before.
func (r *record) note(a answer, expiry time.Duration) {
	r.silent = a.err != nil && !a.calledOff
	switch {
	case a.err != nil:
		r.may, r.unsure = r.may || a.records, r.unsure || a.records
	case a.Held:
		r.may, r.stands, r.until = true, true, windowEnd(a.sent, expiry)
	default:
		r.stands = false
		return
	}
	if forgets := time.Now().Add(expiry); forgets.After(r.forgets) {
		r.forgets = forgets
	}
	if a.left != nil && a.records {
		r.left = both(r.left, a.left)
	}
}

// both is closed when a and b are; a may be nil.
func both(a, b <-chan struct{}) <-chan struct{} {
	if a == nil {
		return b
	}
	select {
	case <-a:
		return b
	default:
	}
	c := make(chan struct{})
	go func() {
		<-a
		<-b
		close(c)
	}()
	return c
}
