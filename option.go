package loki

import (
	"errors"
	"fmt"
	"time"
)

// UntilDone is what [WithWait] is given to wait as long as the context lasts.
const UntilDone = time.Duration(1<<63 - 1)

// Option changes one call of [Locker.ExecuteWithinLock], [Execute] or [Locker.Acquire]. Two options of one kind that say
// different things are an error, and nothing is sent: which of them counts would depend on their order.
type Option func(*options) error

type options struct {
	given map[string]any // what each kind of option was given

	resource    string
	hasResource bool
	wait        time.Duration
	minHold     time.Duration
	noRenewal   bool
	background  bool
	outcome     *Outcome

	occurrence    string
	hasOccurrence bool
	keep          time.Duration
}

func newOptions(opts []Option) (options, error) {
	if len(opts) == 0 { // the usual case costs nothing
		return options{}, nil
	}
	var o options
	var mistakes []error
	for i, opt := range opts {
		if opt == nil {
			mistakes = append(mistakes, fmt.Errorf("loki: option %d is nil: leave it out", i+1))
			continue
		}
		if err := opt(&o); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	return o, errors.Join(mistakes...)
}

// once notes that the option called name was given value, and returns an error if another one was given before.
func (o *options) once(name string, value any) error {
	if before, ok := o.given[name]; ok && before != value {
		return fmt.Errorf("loki: %s was given twice, with different values: pass it once", name)
	}
	if o.given == nil {
		o.given = make(map[string]any)
	}
	o.given[name] = value
	return nil
}

// WithResource locks one thing under the service key instead of the service as a whole: "service/resource". The two
// are different locks. A name is subject to the rules of a service key, and the pair to [MaxKeyLength]. A call locks one
// resource.
func WithResource(name string) Option {
	return func(o *options) error {
		o.resource, o.hasResource = name, true
		return errors.Join(o.once("WithResource", name), validatePart("the resource", name))
	}
}

// WithWait waits for a busy lock for up to max instead of skipping; 0 or less skips, [UntilDone] waits as long as ctx.
// Callers of one Locker that wait for one key are served in order. The next one gets the lock without a request to a store where
// that is possible, for a tenth of a second: then the callers of other processes have their turn.
//
// max bounds the waiting, not an attempt: the first one gets as much time as that of a call without a wait, and one that
// has begun when max is over is completed. When the wait is over without the lock the error matches [ErrBusy]. A store that
// is unavailable, where no other can decide, ends every wait at once with [ErrUnavailable].
func WithWait(max time.Duration) Option {
	return func(o *options) error {
		o.wait = max
		return o.once("WithWait", max)
	}
}

// WithMinHold keeps the lock for at least d from the moment it was granted, also when fn returns earlier: for
// scheduled jobs whose instances' clocks differ by up to d, so that each occurrence runs once. The call returns at
// once all the same; the lock is left to expire when d is over, whether d is shorter or longer than the expiry. Nothing
// waits for that, [Locker.Close] included. A lock that was lost is not kept.
func WithMinHold(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 || d > MaxExpiry {
			return fmt.Errorf("loki: a minimum hold of %v is not possible: it must be between 0 and %v", d, MaxExpiry)
		}
		o.minHold = d
		return o.once("WithMinHold", d)
	}
}

// WithoutRenewal has the lock not renewed. If fn has not returned when the validity ends, a twentieth before the expiry, its
// context ends and the call returns an error that matches [ErrLockLost] and [ErrExpired].
func WithoutRenewal() Option {
	return func(o *options) error {
		o.noRenewal = true
		return nil
	}
}

// WithBackgroundRelease has the call, or [Lease.Release], return without waiting for the release: it saves a request's time where
// locks are short and many. The release is made at once all the same, on a goroutine of its own.
//
// What the caller gives up is its answer. A release that fails is an event, [KindReleaseFailed], and no error of Lease.Release; that
// a store had lost the lock is an event, [KindLost], and may be no error of the call. Until the release has returned, other
// processes are busy, and calls of this Locker for the same lock wait for it. [Locker.Close] waits as well: call it before the
// process exits, or the lock stays until it expires.
func WithBackgroundRelease() Option {
	return func(o *options) error {
		o.background = true
		return nil
	}
}

// Outcome is what came of one call, whatever error it returned.
type Outcome struct {
	Ran    bool          // fn was called
	Key    string        // the lock, as the stores know it
	Store  Store         // which one granted it; empty if none did
	Fence  int64         // of the lease; 0 if there was none, or the store issues none
	Waited time.Duration // from the call until the lock was granted or the call gave up
}

// WithOutcome has *out filled before the call returns, or panics because fn did. For [Locker.Acquire], Ran says that
// the lock was granted. A call has one Outcome.
func WithOutcome(out *Outcome) Option {
	return func(o *options) error {
		if out == nil {
			return errors.New("loki: WithOutcome needs a place to put the outcome, got nil")
		}
		o.outcome = out
		return o.once("WithOutcome", out)
	}
}
