// Package lokitest tells authors of a [loki.LockHandler] whether it is right, and helps everybody else to see what
// happens when it is not.
//
// [Run] is the conformance suite. It quotes the sentence of the contract that a handler broke:
//
//	func TestConformance(t *testing.T) {
//		lokitest.Run(t, func(t *testing.T) loki.LockHandler { return myhandler.New(client) })
//	}
//
// A pass does not show that a handler is right. The races of the suite find two steps between which another call fits: a
// round trip, a millisecond. They find two steps with only a few instructions between them by luck, and none that begin only
// after a failover, a lost connection, or a restart of the store. The suite breaks no network and stops no server, so it does
// not see which errors are [loki.Unavailable], nor what happens to a request whose caller has given up. It uses one process and
// one clock. All of this is for tests of the handler's own.
//
// [Check] is the same suite without a test.
//
// [Faults] wraps a handler and breaks it on demand: errors, lost replies, delays, hangs, panics. [Recorder] wraps one and
// writes down every call. Both work inside a testing/synctest bubble and may be wrapped around one another.
//
// It does not start a store, and it does not test a Locker: the suite talks to the handler that it is given, alone.
package lokitest
