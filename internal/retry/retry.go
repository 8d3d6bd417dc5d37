// Package retry has what a loop needs that tries again: pauses with jitter, a sleep that ends with a context, and
// durations rounded up to what a store counts in.
//
// Its randomness is not for tokens: those must be unguessable, and a simulation must be able to repeat these with [Replay].
// It does not know what is tried, or how often.
package retry

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// replayed is the seed of the simulation that runs; nil: pauses come from the runtime's own source.
var replayed atomic.Pointer[uint64]

// UpTo returns a random duration from 0 to limit, both included. A negative limit counts as 0.
func UpTo(limit time.Duration) time.Duration {
	limit = max(limit, 0)
	if limit == math.MaxInt64 { // the bound of the generators is exclusive
		limit--
	}
	if seed := replayed.Load(); seed != nil {
		r := rand.New(rand.NewPCG(*seed^uint64(limit), uint64(time.Now().UnixNano())))
		return time.Duration(r.Int64N(int64(limit) + 1))
	}
	return rand.N(limit + 1)
}

// Around returns d, longer or shorter by up to an eighth, so that callers that pause for the same time do not try again at
// the same moment.
func Around(d time.Duration) time.Duration { return d - d/8 + UpTo(d/4) }

// Replay makes every pause of the process a function of seed, the pause's limit and the time, until end is called. It is
// for one simulation at a time, on a simulated clock.
//
// A generator that callers draw from in turn would not do: of two goroutines that pause at the same instant sometimes one
// draws first and sometimes the other, and every pause after that would differ.
func Replay(seed uint64) (end func()) {
	replayed.Store(&seed)
	return func() { replayed.Store(nil) }
}

// Sleep pauses for d. It reports false, at once, if ctx has ended or ends meanwhile.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d > 0 && ctx.Err() == nil {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// Ceil returns how many units cover d. A d of zero or less needs none.
func Ceil(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}

// CeilMillisecond returns d rounded up to the millisecond. A store that keeps milliseconds must keep a lock for no less
// than it was asked to. What would not fit into a duration is rounded down.
func CeilMillisecond(d time.Duration) time.Duration {
	return time.Duration(min(Ceil(d, time.Millisecond), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
