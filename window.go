package loki

import "time"

const (
	// MarginFraction is the part of an expiry that is its margin: see [Margin].
	MarginFraction = 20

	// MinMargin is the least margin there is.
	MinMargin = time.Millisecond

	// RenewalFraction is how many times within its expiry a lease is renewed: two renewals in a row may fail before
	// the third has to succeed.
	RenewalFraction = 3
)

// Margin is the part of an expiry in which a lease is no longer trusted although the store may still hold it: a
// twentieth of the expiry, at least a millisecond. It covers clocks that run at different rates and the time between
// the end of the lease and the moment fn notices.
func Margin(expiry time.Duration) time.Duration { return max(expiry/MarginFraction, MinMargin) }

// windowEnd is until when a lease may be trusted that a store has confirmed: counted from before the request was sent,
// because the store starts the expiry at some moment after that. The monotonic clock of sent carries over.
func windowEnd(sent time.Time, expiry time.Duration) time.Time {
	return sent.Add(expiry - Margin(expiry))
}
