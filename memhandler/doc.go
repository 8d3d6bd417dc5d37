// Package memhandler is a lock store in the memory of one process, for development and for unit tests.
//
//	store := memhandler.New()
//	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(store).Build()
//
// It is also the reference: where the words of [loki.LockHandler] and its capabilities leave a question open, this is
// the answer. It has every capability but [loki.Validator], starts no goroutine and no timer, and works inside
// a testing/synctest bubble (create the Handler in the bubble that uses it: a bubble has a clock of its own).
//
// It does not lock across processes: two processes have two memories, and both get the lock.
package memhandler
