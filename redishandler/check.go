package redishandler

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
)

// ErrAdvice matches what [Check] returns if it found nothing that keeps locks from working: a server that forgets them in
// a crash, waiters that have to poll, something that this user may not look at. It does not match an error with a fault
// in it besides.
var ErrAdvice = errors.New("redishandler: advice")

// checkTimeout is what a check takes at most: a service that starts gives it the context that it runs with, which may not end.
const checkTimeout = 10 * time.Second

var (
	//go:embed lua/check.lua
	checkLua    string
	checkScript = newScript(checkLua)
)

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
	return found(ctx, h.checkServers)
}

// CheckQuorum is [Check] for each server of a quorum made by [NewQuorum] with the same clients and options.
func CheckQuorum[C Client](ctx context.Context, clients []C, opts ...Option) error {
	q := NewQuorum(clients, opts...)
	if err := q.Validate(); err != nil {
		return err
	}
	return found(ctx, func(ctx context.Context, f *findings) {
		var all sync.WaitGroup
		for _, m := range q.members {
			all.Go(func() { m.handler.checkServers(ctx, f) })
		}
		all.Wait()
	})
}

// findings is what a check has found so far. It is safe for concurrent use.
type findings struct {
	begun                   time.Time
	mu                      sync.Mutex
	faults, outages, advice []error
}

func (f *findings) add(to *[]error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(*to, func(e error) bool { return e.Error() == err.Error() }) {
		*to = append(*to, err)
	}
}

func (f *findings) fault(format string, args ...any) {
	f.add(&f.faults, fmt.Errorf(prefix+format, args...))
}

func (f *findings) advise(format string, args ...any) {
	f.add(&f.advice, fmt.Errorf(prefix+"advice: "+format, args...))
}

// fail adds an error of a server, or of its client.
func (f *findings) fail(err error) {
	if loki.IsUnavailable(err) || errors.Is(err, context.Canceled) {
		f.add(&f.outages, err)
	} else {
		f.add(&f.faults, err)
	}
}

// within runs look, and reports a server that has not answered when ctx ends. It returns false then. A go-redis client by
// default heeds no context in the middle of a command.
func (f *findings) within(ctx context.Context, server string, look func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		look()
	}()
	select {
	case <-done:
		if ctx.Err() == nil {
			return true
		}
	case <-ctx.Done():
	}
	f.fail(fmt.Errorf("redishandler: no answer to the check within %v from %s: %w", time.Since(f.begun).Round(time.Millisecond), server, ctx.Err()))
	return false
}

// found returns what look finds within checkTimeout.
func found(ctx context.Context, look func(context.Context, *findings)) error {
	f := &findings{begun: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	look(ctx, f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults)+len(f.outages)+len(f.advice) == 0 {
		return nil
	}
	e := &checkError{all: slices.Concat(f.faults, f.outages, f.advice), advice: len(f.faults)+len(f.outages) == 0}
	e.matched = f.faults
	if len(f.faults) == 0 { // a fault is one whatever else is down
		e.matched = f.outages
	}
	return e
}

// checkError is what [Check] found.
type checkError struct {
	all     []error
	matched []error // what errors.Is and errors.As look at
	advice  bool    // there is nothing else
}

func (e *checkError) Error() string { return errors.Join(e.all...).Error() }

func (e *checkError) Is(target error) bool { return target == ErrAdvice && e.advice }

func (e *checkError) Unwrap() []error { return e.matched }
