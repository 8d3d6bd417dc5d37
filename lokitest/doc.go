// Package lokitest tells authors of a [loki.LockHandler] whether it is right, and helps everybody else to see what
// happens when it is not.
//
// [Run] is the conformance suite. It quotes the sentence of the contract that a handler broke:
//
//	func TestConformance(t *testing.T) {
//		lokitest.Run(t, func(t *testing.T) loki.LockHandler { return myhandler.New(client) })
//	}
//
// [Check] is the same suite without a test.
//
// [Faults] wraps a handler and breaks it on demand: errors, lost replies, delays, hangs, panics. [Recorder] wraps one and
// writes down every call. Both work inside a testing/synctest bubble and may be wrapped around one another.
//
// It does not start a store, and it does not test a Locker: the suite talks to the handler that it is given, alone.
package lokitest
