// Package loki runs a closure on one machine at a time.
//
// A service that runs on n machines wraps a batch job in [Locker.ExecuteWithinLock]. One instance runs it, the others
// skip it, or wait for their turn with [WithWait]. The lock lives in a primary store, usually Redis; an optional
// secondary, usually SQL Server, decides while the primary is unavailable. It does not know any store: a store is a
// [LockHandler], and the packages redishandler, redlockhandler, mssqlhandler, postgreshandler and memhandler are
// such. It has nothing to do with the log database of the same name.
//
// # What is promised
//
// While the lease of one closure lasts, no closure of another instance that uses the same key and stores is started:
//
//   - with a primary alone, as long as the primary keeps its keys. A Redis that restarts empty, or promotes a replica
//     that missed a write, has lost them;
//   - with [MirrorSync], as long as the secondary keeps its records, no store's clock steps and every instance uses it,
//     whatever happens to the primary;
//   - with [MirrorAsync], as long as all instances see the primary alike and it keeps its keys. Where they do not, two
//     closures may overlap until the secondary has refused the mirror write of one of them for a moment, or as long as
//     one cannot reach the secondary while the other cannot reach the primary. The overlap is detected, ended (the one
//     without a record in the secondary backs off) and reported as [ErrLockLost] and [ErrConflict]. A closure that ends
//     before its mirror write has been answered is not checked. The bounds are in docs/guarantees.md.
//
// A lease lasts from the grant until it is released or its validity ends: the expiry less a margin of a twentieth, counted
// from before the request that last confirmed it, on the monotonic clock. The context of the closure ends then at the
// latest. A closure that ignores its context, or a process that is stopped for longer than that, goes on without
// the lock; a [Lease.Fence] handed to the store of the guarded data is what protects the data from it.
//
// Only the stores' clocks decide when a claim expires there. No clock of a client is ever written to a store or compared
// with one's.
//
// # What ExecuteWithinLock returns
//
//	returned                                 fn ran   meaning
//	nil                                      once     fn returned nil, and the lock was held throughout as far as the
//	                                                  stores that answered knew
//	matches ErrBusy                          no       held elsewhere, says a store or this process; matches ctx's error
//	                                                  too if that ended a wait
//	matches ErrUnavailable                   no       no store could decide, or MirrorSync needed one that was
//	                                                  unavailable; one *HandlerError for each is joined
//	matches ErrLockLost                      once     the lock ended before fn did; ErrExpired, ErrNotHeld or
//	                                                  ErrConflict matches too, and fn's own error is joined
//	matches *HandlerError, none of the above no       a store refused with a permanent error: no permission, no table
//	ErrClosed                                no       the Locker has been closed
//	a sentence on an argument                no       nothing was sent
//	matches ctx.Err() and context.Cause(ctx) no       ctx ended first; what a store may have recorded is rolled back in
//	                                                  the background
//	anything else                            once     fn's own error, untouched
//
// Since fn may return any error, a nested call's ErrBusy included, [Outcome.Ran] is the proof.
//
// Contention is never an outage: ErrUnavailable needs a store that failed or was too slow, however short the wait was. The
// texts name the lock, the store, the reason, and where the store reports them the holder and when its record expires.
// Whatever comes from a store or a caller is quoted in them, without control characters, and cut.
//
// A release that fails after fn has returned is an event, not an error: the work is done, and the claim expires. One that
// finds that the store had forgotten the lock is an [ErrLockLost].
package loki
