package redishandler

import (
	"context"
	"errors"

	"github.com/lokilock/loki/internal/redisstore"
)

// ErrAdvice matches what [Check] returns if it found nothing that keeps locks from working: a server that forgets them in
// a crash, waiters that have to poll, something that this user may not look at. It does not match an error with a fault
// in it besides.
var ErrAdvice = errors.New("redishandler: advice")

// Check says at start-up whether a handler made with the same client and options could work: whether the server can be
// written to and is not too old, whether it evicts keys, whether its user may run each command that the scripts call, on
// keys and channels such as those of a lock, and whether there are the replicas that [WithReplicaAck] asks for. Of a
// cluster and of a Ring it looks at every master. It returns every fault at once, each in a sentence that says what to do,
// or nil. It changes nothing, and tries the commands on a key that is not there.
//
// What is no fault, but costs something, is in the error too: no or lax persistence, no wake-ups for waiters, and what the
// server does not let this user see (INFO, which managed services may forbid). Such a line begins with "redishandler: advice:".
// If there is nothing else, the error matches [ErrAdvice]:
//
//	if err := redishandler.Check(ctx, rdb); errors.Is(err, redishandler.ErrAdvice) {
//		slog.Warn("redis could be set up better", "error", err)
//	} else if err != nil {
//		return err
//	}
//
// A server that cannot answer now is an error too, for which [loki.IsUnavailable] is true unless there are faults: whether
// that is a reason not to start is the caller's to say. All of it takes ten seconds at most, and no longer than ctx lasts. The
// client stays open.
func Check(ctx context.Context, client Client, opts ...Option) error {
	h := New(client, opts...)
	if err := h.Validate(); err != nil {
		return err
	}
	return redisstore.Check(ctx, "redishandler: ", ErrAdvice, h.store)
}
