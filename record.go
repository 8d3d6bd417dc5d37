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
	weak    time.Duration   // the shortest expiry among requests that were given up and may land yet, 0 if there are none
	weakens time.Time       // until when they may
	left    <-chan struct{} // closed when every request that was left behind has returned; nil if none was
}

// note takes an answer to a request that may have recorded the claim, or only extended it: then there is nothing unsure
// about a failure, since what is extended was recorded before.
func (r *record) note(a answer) {
	if !a.calledOff {
		r.silent = a.err != nil
	}
	switch {
	case a.err != nil:
		if a.records && (r.weak == 0 || a.expiry < r.weak) {
			r.weak = a.expiry
		}
		r.may, r.unsure = r.may || a.records, r.unsure || a.records
	case a.Held:
		r.may, r.stands, r.until = true, true, windowEnd(a.sent, a.expiry)
	default:
		r.stands = false
		return
	}
	if forgets := time.Now().Add(a.expiry); forgets.After(r.forgets) {
		r.forgets = forgets
	}
	if a.err != nil && a.records {
		r.weakens = r.forgets
	}
	if a.left != nil && a.records {
		r.left = both(r.left, a.left)
	}
}

// sure is for how long an answer to a request for expiry can be relied on. One that was given up earlier asked for what
// was left of the lease then, and if it lands now, the store keeps the claim no longer than that.
func (r *record) sure(expiry time.Duration) time.Duration {
	if r.left != nil {
		select {
		case <-r.left:
		default:
			r.weakens = time.Now().Add(expiry) // still under way
		}
	}
	if r.weak == 0 || time.Now().After(r.weakens) {
		r.weak = 0
		return expiry
	}
	return min(expiry, r.weak)
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
