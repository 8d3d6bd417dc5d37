package loki

import (
	"context"
	"time"
)

// LockHandler is the interface that a lock store implements, in two methods.
//
// It is a plain try-lock: it does not wait for a lock, log, or know of another handler; the [Locker] does all of that.
// It is not for data: whatever else the store keeps is none of its business. The suite in package lokitest holds
// an implementation to this contract, clause by clause.
//
// Both methods are called by many goroutines at once, also for the same key. Each method, and each one of [Granter],
// [Extender] and [Releaser], is one atomic step in the store: of many calls at once, each takes effect at one moment, as if
// they came one after the other. To look at the record and then to write it are two steps, if another call can come between.
//
// The Locker may call again with the same claim before the first call has returned: when that has had no answer for a while,
// and the first answer counts (see [Claim.Repeated]). If ctx has ended already they change nothing and return an error that
// matches ctx.Err().
//
// The deadline of ctx is when the Locker stops waiting (see [Config.PrimaryTimeout]). ctx is done some seconds later, or when
// the caller cancels its own context, so that a request which is on its way can end by itself and keeps its connection
// usable. A handler that queues requests sends none after the deadline, and returns an error with [NotSent] at that time. A
// call that has not returned by then is abandoned: the Locker goes on without it, and the number of abandoned calls is
// bounded, for each key and in all.
//
// An error that means "the store cannot be reached, or cannot answer now" is wrapped with [Unavailable]; any other error is
// permanent, and goes to the caller as it is. See [IsUnavailable].
//
// What more a store can do it says with capabilities: [Granter], [Extender], [BatchExtender], [Releaser],
// [Notifier], [Inspector], [Bounder], [Validator]. Each is an interface of one method, found by type. A decorator that has a capability's method but whose inner handler does
// not returns an error that matches [errors.ErrUnsupported] from it, and the Locker goes on as if it were absent.
type LockHandler interface {
	// Lock tries once, without waiting, to record c.
	//
	//	true,  nil  c.Token holds c.Key for at least c.Expiry, counted from the moment of the call
	//	false, nil  another token holds it: an answer, not a failure
	//	_,     err  unknown: c may or may not be recorded
	//
	// Lock of a claim that already holds succeeds and starts its expiry anew, so a repeated call is safe. The new
	// expiry may be shorter than what was left.
	Lock(ctx context.Context, c Claim) (bool, error)

	// Release forgets c if, and only if, c.Token still holds c.Key. Releasing what is not held is no error.
	Release(ctx context.Context, c Claim) error
}

// Claim is what a handler is asked to record: one acquisition of one lock. The [Locker] mints it, once for each
// acquisition; a handler stores Key verbatim, or in a form from which no two keys can collide.
type Claim struct {
	// Key names the lock: the service key, or "service/resource". After that, the record of an occurrence has "@" and its
	// id, and a probe of the circuit breaker "@@probe-" and eight hexadecimal digits. In each part "/", "@" and "%" are percent-encoded,
	// so that no two ever meet. At most [MaxKeyLength] UTF-16 units.
	Key string

	// Token is unique to this acquisition: 128 random bits in hexadecimal. Only its bearer may renew or release.
	Token string

	// Expiry is how long the store keeps the claim if nobody renews it, to the millisecond, rounded up. Always
	// positive.
	Expiry time.Duration

	// Holder says who this is, for people who look: host and process. It identifies nothing; Token does.
	Holder string

	// Fence is a floor for stores that issue fences: the fence issued for this claim is at least this. Zero where no
	// store has issued one yet.
	Fence int64

	// Mirrored says that another store may know this claim too. The answer does not depend on it. A store that can
	// remember the last released token ([Grant.Released]) need do so only for mirrored claims, for Expiry.
	Mirrored bool

	// Supersedes, if not empty, is the token of a claim that is known to be over: a record of it under Key is
	// replaced as if it had expired.
	Supersedes string

	// Quiet asks a [Notifier] not to wake anybody for the release of this claim: its holder backs off to another one,
	// and waiters would only chase that.
	Quiet bool

	// Over, Failed and Unused are for stores that keep a history. No answer depends on them.
	//
	// Over says, with Lock and Extend, that what ran under the claim is over, and that the record is kept until it expires:
	// for a minimum hold, or as a completion record. A release needs no word of that.
	//
	// Failed says, with Over or when the claim is released, that it did not end well: the closure returned an error,
	// panicked, or lost its lock.
	//
	// Unused says, when the claim is released, that nothing ran under it: the acquisition was rolled back, or found the
	// occurrence done.
	Over, Failed, Unused bool

	// Repeated says that an earlier request of this call has had no answer for a while and may still be on its way: the
	// connection that carries it may be dead. A handler with a pool of connections sends this request over another one, and
	// over a new one if it can, because whatever killed one idle connection has usually killed them all.
	Repeated bool

	// Bounded says that the call is made on the goroutine that waits for its answer, and has to return when ctx ends: at its
	// deadline, which is a tenth of a second away at most, or when the caller has cancelled it if that can be done. Only a
	// [Bounder] gets such claims.
	Bounded bool
}

// Grant is the answer to a claim in full.
type Grant struct {
	// Held is what [LockHandler.Lock] would have returned.
	Held bool

	// Fence is the number issued for the claim, if Held: for one key larger than every fence issued before, and at
	// least [Claim.Fence]. A claim that is granted again while it holds keeps its fence, unless the floor has risen above
	// it. Zero where the store issues none.
	Fence int64

	// HeldBy says who holds the key, if not Held, as far as the store knows.
	HeldBy Holder

	// Contended says, if not Held, that no other claim holds the key either: several contend for it, and none has won. HeldBy
	// is empty then. It is contention and no outage: a caller that waits asks again soon, whatever its [Notifier] says, and one
	// that does not wait gets an error that matches [ErrBusy].
	Contended bool

	// Released is the token of the mirrored claim last released on this key, if the store still remembers it, else
	// empty. It has to be remembered for the Expiry of the claim that Release was given.
	Released string
}

// Holder is who holds a lock, as a store tells it.
type Holder struct {
	// ID is the [Claim.Holder] of the claim that holds.
	ID string

	// Since and Until are the times of the claim's first grant and of its expiry, by the store's clock. Zero where
	// the store does not know.
	Since, Until time.Time

	// Left is how long from the answer until the claim expires, if it is not renewed: what a client can wait for, whose
	// clock is not the store's. Zero where the store does not know.
	Left time.Duration
}

// Granter is the capability to answer Lock in full, in the same single round trip. Grant follows every rule of
// [LockHandler.Lock].
//
// Without it there is no fence, no name in the busy error, and a record that is left in the secondary is respected until it
// expires, also if the primary has released its claim (see [Grant.Released]).
type Granter interface {
	Grant(ctx context.Context, c Claim) (Grant, error)
}

// Extender is the capability to renew a claim without ever taking it anew.
//
//	true,  nil  c.Token held c.Key and holds it for c.Expiry from the moment of the call (shorter or longer than before)
//	false, nil  c.Token does not hold c.Key; nothing was changed
//	_,     err  unknown
//
// Without it the Locker renews with Lock, within the lease's validity only.
type Extender interface {
	Extend(ctx context.Context, c Claim) (held bool, err error)
}

// BatchExtender is the capability to extend many claims with one call, for a handler that is an [Extender] too.
//
// ExtendAll returns an answer for each claim, in their order: what Extend would have returned. Each claim is an atomic step of
// its own, and what becomes of one does not change the answer to another. An error is for a call that has come to nothing:
// then the outcome of every claim is unknown, and answers do not count. The call follows the rules of [LockHandler], as one
// call: the deadline of ctx, [NotSent], [Claim.Repeated], which is never set here. No claims are no error. The Locker sends
// up to 128 claims at once, and ctx has none of the values of their callers' contexts.
//
// A decorator that embeds a handler has its ExtendAll as well, which does not call the Extend of the decorator. Without it each
// lease is renewed by a call of its own.
type BatchExtender interface {
	ExtendAll(ctx context.Context, claims []Claim) ([]Extended, error)
}

// Extended is the answer to one claim of a batch.
type Extended struct {
	Held bool
	Err  error // not nil: unknown
}

// Releaser is the capability to report what a release found.
//
//	true,  nil  c.Token held c.Key until now
//	false, nil  c.Token did not hold c.Key when this request arrived; nothing was changed
//	_,     err  unknown
//
// ReleaseHeld follows every rule of [LockHandler.Release]. It sends the request once: a client that repeats a request whose
// reply was lost would find its own work done, and report a lock as lost that was held. Where a handler cannot be sure that
// the request was sent once, it returns true.
//
// Without it a lock that the store forgot while fn ran, after its last renewal, is not reported.
type Releaser interface {
	ReleaseHeld(ctx context.Context, c Claim) (held bool, err error)
}

// Notifier is the capability to tell a waiter that a key may be free, so that it need not poll.
//
// Notify returns when it is listening: whatever frees key from then on is told by a value on the channel, and so is
// whatever makes it free earlier than was said before. That is a release, unless the claim is [Claim.Quiet], and an
// expiry made shorter; not an expiry that passes, which a waiter knows from [Holder.Left]. Values may be merged, and there
// may be more of them than needed: none of them promises the lock. A handler that may have missed something, as when its
// connection broke, sends one to be safe. Notify listens until ctx ends, and then leaves nothing behind. If it can listen
// no longer it closes the channel.
//
// Without it waiting polls with a jittered, growing pause.
type Notifier interface {
	Notify(ctx context.Context, key string) (<-chan struct{}, error)
}

// Inspector is the capability to report who holds a key. False means that it is free.
//
// People and tools read with it, and so does [WithOccurrence], for completion records. The Locker asks it of no other key:
// what it reports may be over by the time it is read. Without it, a call with WithOccurrence returns an error.
type Inspector interface {
	Inspect(ctx context.Context, key string) (Holder, bool, error)
}

// Bounder is the capability to return from Lock, Grant, Extend, Release and ReleaseHeld when ctx ends, without a goroutine
// that is left behind: the handler sets the deadline on its connection, or needs none because it waits for nothing.
//
// If Bounds returns true, the Locker calls these methods on its caller's goroutine, with [Claim.Bounded], as long as the
// store answers quickly. That saves two switches between goroutines for each call, as much time as the round trip to a
// server on the same machine. Bounds is called once, by Build or New.
//
// A decorator that embeds a handler has its Bounds as well. One that may wait for something else returns false. A method that
// ends its goroutine, as t.FailNow does, ends the caller's.
//
// Without it each call has a goroutine of its own, which the Locker leaves behind if it does not return in time.
type Bounder interface {
	Bounds() bool
}

// Validator is the capability to say, before anything is sent, what is wrong with the way a handler was put together.
// Build and New call it once and return its error among the others.
//
// Without it such a mistake shows at the first call.
type Validator interface {
	Validate() error
}
