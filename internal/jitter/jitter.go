// Package jitter is the one source of randomness in pauses.
//
// It does not make tokens: those must be unguessable, and these must be repeatable. A simulation that is to play the same
// story twice takes the source over with [Replay].
package jitter

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// replayed is the seed of what is being replayed; nil: pauses come from the runtime's own source.
var replayed atomic.Pointer[uint64]

// UpTo is a random duration from 0 to limit, both included. A negative limit counts as 0.
func UpTo(limit time.Duration) time.Duration {
	limit = max(limit, 0)
	if seed := replayed.Load(); seed != nil {
		r := rand.New(rand.NewPCG(*seed^uint64(limit), uint64(time.Now().UnixNano())))
		return time.Duration(r.Int64N(int64(limit) + 1))
	}
	return rand.N(limit + 1)
}

// Around is d, longer or shorter by up to an eighth, so that those who pause for the same time do not march in step.
func Around(d time.Duration) time.Duration { return d - d/8 + UpTo(d/4) }

// Replay has every pause of the process made from seed, its limit and the time, until the function that it returns is
// called. It is for simulations, one at a time, in which the time is a part of the story. A source that is drawn from in
// turn would not do: of two goroutines that pause at one instant now this and now that one draws first, and from there on
// every pause would be another.
func Replay(seed uint64) (end func()) {
	replayed.Store(&seed)
	return func() { replayed.Store(nil) }
}
