package loki

import "time"

// record is what is known of a lease's claim in one store.
type record struct {
	may     bool          // a request to record it was sent: it has to be released there
	unsure  bool          // such a request failed: whether it was carried out, or will be, is not known
	refused bool          // it was a permanent error, and nothing else has been sent
	left    []*attempt    // such requests that had not returned when their call was over
	stands  bool          // the store's latest answer was that it holds
	silent  bool          // the store did not answer the latest request
	until   time.Time     // the end of that answer's window
	forgets time.Time     // from when on the store has forgotten it by itself, whatever happened
	weak    time.Duration // the shortest expiry among requests whose outcome is unknown and that may land yet, 0 if there are none
	weakens time.Time     // until when they may
}

// note takes an answer to a request that may have recorded the claim, or only extended it: then there is nothing unsure
// about a failure, since what is extended was recorded before.
func (r *record) note(a answer) {
	if !a.calledOff {
		r.silent = a.err != nil
	}
	switch {
	case a.err != nil:
		r.refused = a.records && !IsUnavailable(a.err) && !a.repeated && (r.refused || !r.may)
	case a.Held:
		r.may, r.stands, r.until = true, true, windowEnd(a.sent, a.expiry)
	default:
		r.stands = false
	}
	if forgets := time.Now().Add(a.expiry); (a.Held || a.unknown()) && forgets.After(r.forgets) {
		r.forgets = forgets
	}
	if !a.records || !a.unknown() {
		return
	}
	r.may, r.unsure = true, r.unsure || a.failed
	r.sort()
	r.left = append(r.left, a.left...)
	if r.weak == 0 || a.weakest < r.weak {
		r.weak = a.weakest
	}
	r.weakens = r.forgets
}

// open reports whether a request may record the claim yet, however often it is released.
func (r *record) open() bool { return r.unsure || len(r.left) > 0 }

// sort looks at the requests that were left. One that has been answered since cannot land any more.
func (r *record) sort() {
	left, failed := inFlight(r.left)
	r.left, r.unsure = left, r.unsure || failed
}

// sure is for how long an answer to a request for expiry can be relied on. One that was given up earlier asked for what
// was left of the lease then, and if it lands now, the store keeps the claim no longer than that.
func (r *record) sure(expiry time.Duration) time.Duration {
	if r.sort(); len(r.left) > 0 {
		r.weakens = time.Now().Add(expiry)
	}
	if r.weak == 0 || time.Now().After(r.weakens) {
		r.weak = 0
		return expiry
	}
	return min(expiry, r.weak)
}
