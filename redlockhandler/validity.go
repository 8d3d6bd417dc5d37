package redlockhandler

import (
	"time"

	"github.com/lokilock/loki"
)

// DefaultServerTimeout is how long a [Handler] waits for one server, or a tenth of the expiry if that is less, but not less
// than 50 ms. [WithServerTimeout] replaces all of that. One that did not answer the last time is waited for only
// as long as no majority has answered without it. [loki.DefaultPrimaryTimeout] leaves room for three rounds that take as long.
const DefaultServerTimeout = 150 * time.Millisecond

const (
	// driftShare of the expiry, and leastDrift, is what servers' clocks may run faster than ours within it. It is what
	// the Redlock paper gives away; here the servers are asked for that much more instead, so that the holder has what
	// was promised to him.
	driftShare = 100
	leastDrift = 2 * time.Millisecond

	// timeoutShare of the expiry is the most that a server may take, but never less than leastTimeout: a first request
	// connects and logs in, and with an expiry that short it is tooLate that judges.
	timeoutShare = 10
	leastTimeout = 50 * time.Millisecond

	// anyExpiry stands for the expiry of what has none.
	anyExpiry = timeoutShare * DefaultServerTimeout
)

// padded is the expiry that servers are asked for, so that by our clock none of them forgets before the expiry is over.
func padded(expiry time.Duration) time.Duration { return expiry + expiry/driftShare + leastDrift }

// promised is the inverse: what a claim that a server keeps for left has left of what its holder was promised. It is
// never zero, which would mean that it is not known.
func promised(left time.Duration) time.Duration {
	return max((left-leastDrift)/(driftShare+1)*driftShare, time.Millisecond)
}

// tooLate reports whether the votes took so long to come that too little is left of the earliest of them: half of the
// expiry is the least that a lock is good for. An expiry that no Locker asks for may be shorter than a round trip, and is
// for those who want it.
func tooLate(expiry, took time.Duration) bool { return took > expiry/2 && expiry >= loki.MinExpiry }

// patience is how long one server has to answer about a claim: far less than its expiry, unless the caller knows better.
func (h *Handler) patience(expiry time.Duration) time.Duration {
	if h.timeout > 0 {
		return h.timeout
	}
	return min(DefaultServerTimeout, max(expiry/timeoutShare, leastTimeout))
}
