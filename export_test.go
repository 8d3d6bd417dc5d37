package loki

import (
	"context"
	"time"
)

// What the tests of this package know of its insides: the numbers that make up documented bounds.
const (
	MirrorGrace     = mirrorGrace
	BreakerMinPause = breakerMinPause
	BreakerMaxPause = breakerMaxPause
	PaceHolds       = paceHolds
	LongestHere     = longestHere
	MaxBatch        = maxBatch
	MaxBatches      = maxBatches
	EarlyFraction   = earlyFraction
	QueueFraction   = queueFraction
	RenewalFraction = renewalFraction
	MarginFraction  = marginFraction
	MaxPending      = maxPending
	MaxAbandoned    = maxAbandoned
	ManyAbandoned   = manyAbandoned

	MaxAbandonedOfKey = maxAbandonedOfKey
	MaxLingering      = maxLingering
	Linger            = linger
	ProbeSuffix       = probeSuffix
	MirrorSlots       = backgroundSlots
)

// Margin is the part of an expiry in which a lease is not trusted.
func Margin(expiry time.Duration) time.Duration { return expiry - trusted(expiry) }

// Copy returns a copy of a Locker, which go vet would not let a test make.
func Copy(l *Locker) *Locker {
	return &Locker{self: l.self, serviceKey: l.serviceKey, holder: l.holder, mode: l.mode, primary: l.primary, secondary: l.secondary, events: l.events, agenda: l.agenda, keys: l.keys, closing: l.closing, leases: l.leases}
}

// MirrorDueAfterRenewal asks the stores to renew a lease, and returns whether a mirror write may leave before that is noted.
func MirrorDueAfterRenewal(ls *Lease) bool {
	_ = ls.locker.mode.renew(context.Background(), ls)
	_, due := ls.nextRequest(ls.locker.secondary)
	return due
}

// ToClose returns how many leases Close would end.
func ToClose(l *Locker) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leases)
}

// Reconciled returns how many leases the background work of a Locker remembers.
func Reconciled(l *Locker) (n int) {
	for _, s := range l.stores() {
		s.background.mu.Lock()
		for _, leases := range s.background.leases {
			n += len(leases)
		}
		s.background.mu.Unlock()
	}
	return n
}
