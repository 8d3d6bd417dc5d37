package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
)

// checkTimeout bounds a check: a service that starts gives it the context that it runs with, which may not end.
const checkTimeout = 10 * time.Second

// Check looks at every server of the stores: whether it can be written to and is not too old, whether it evicts keys,
// whether its user may run each command that the scripts call, and whether it has the replicas that are asked for. It
// returns every fault at once, or nil. Each line of the error's text begins with prefix. An error that contains nothing
// but advice matches the error advice.
func Check(ctx context.Context, prefix string, advice error, stores ...*Store) error {
	f := &findings{begun: time.Now(), prefix: prefix}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range stores {
		all.Go(func() { s.checkServers(ctx, f) })
	}
	all.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults)+len(f.outages)+len(f.advice) == 0 {
		return nil
	}
	e := &checkError{all: slices.Concat(f.faults, f.outages, f.advice), matched: f.faults}
	if len(f.faults) == 0 { // a fault is one whatever else is down
		e.matched = f.outages
	}
	if len(e.matched) == 0 {
		e.advice = advice
	}
	return e
}

// findings is what a check has found so far. It is safe for concurrent use.
type findings struct {
	begun                   time.Time
	prefix                  string
	mu                      sync.Mutex // guards everything below
	faults, outages, advice []error
}

func (f *findings) add(to *[]error, err error) {
	err = fmt.Errorf("%s%w", f.prefix, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(*to, func(e error) bool { return e.Error() == err.Error() }) {
		*to = append(*to, err)
	}
}

func (f *findings) fault(format string, args ...any) {
	f.add(&f.faults, fmt.Errorf(format, args...))
}

func (f *findings) advise(format string, args ...any) {
	f.add(&f.advice, fmt.Errorf("advice: "+format, args...))
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
	f.fail(fmt.Errorf("no answer to the check within %v from %s: %w", time.Since(f.begun).Round(time.Millisecond), server, ctx.Err()))
	return false
}

// checkError is what [Check] found.
type checkError struct {
	all     []error
	matched []error // what errors.Is and errors.As look at
	advice  error   // matches too if there is nothing else
}

func (e *checkError) Error() string { return errors.Join(e.all...).Error() }

func (e *checkError) Is(target error) bool { return e.advice != nil && target == e.advice }

func (e *checkError) Unwrap() []error { return e.matched }
