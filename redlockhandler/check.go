package redlockhandler

import (
	"context"
	"errors"

	"github.com/lokilock/loki/internal/redisstore"
)

// ErrAdvice matches what [Check] returns if it found nothing that keeps locks from working, as that of package redishandler
// does.
var ErrAdvice = errors.New("redlockhandler: advice")

// Check is the function of the same name in package redishandler, for each server of a [Handler] made with the same clients
// and options: it returns at start-up every fault of every server at once, each in a sentence that says what to do, or nil.
// What is no fault, but costs something, is in the error too, in lines that begin with "redlockhandler: advice:". If there
// is nothing else, the error matches [ErrAdvice]. A server that cannot answer now is an error for which
// [loki.IsUnavailable] is true, unless there are faults.
//
// It takes ten seconds at most, and no longer than ctx lasts. It changes nothing, and the clients stay open.
func Check[C Client](ctx context.Context, clients []C, opts ...Option) error {
	h := New(clients, opts...)
	if err := h.Validate(); err != nil {
		return err
	}
	var stores []*redisstore.Store
	for _, s := range h.servers {
		stores = append(stores, s.store)
	}
	return redisstore.Check(ctx, "redlockhandler: ", ErrAdvice, stores...)
}
