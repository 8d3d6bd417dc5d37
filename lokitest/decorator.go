package lokitest

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/lokilock/loki"
)

// decorator is what this package wraps around a handler: it has every method, whatever the inner handler has.
type decorator interface{ wrapped() loki.LockHandler }

// as is h as a C, if the handler inside all decorators is one. Without the look inside, a fault or a record would be
// spent on a call that reaches no store.
func as[C any](h loki.LockHandler) (C, error) {
	core := h
	for d, ok := core.(decorator); ok; d, ok = core.(decorator) {
		core = d.wrapped()
	}
	if _, ok := core.(C); !ok {
		return *new(C), fmt.Errorf("lokitest: the wrapped %T is no %v: %w", core, reflect.TypeFor[C](), errors.ErrUnsupported)
	}
	return h.(C), nil
}

// validate is what a decorator says about the handler inside.
func validate(inner loki.LockHandler) error {
	v, err := as[loki.Validator](inner)
	if err != nil {
		return nil //nolint:nilerr // the handler has nothing to validate: that is no mistake of anybody's
	}
	return v.Validate()
}

// nothing is what a decorator has inside that was given nil: a sentence instead of a panic.
type nothing struct{}

var errNothing = errors.New("lokitest: the Faults or Recorder was made around nil: give it the handler that it is to wrap")

func orNothing(h loki.LockHandler) loki.LockHandler {
	if h == nil {
		return nothing{}
	}
	return h
}

func (nothing) Lock(context.Context, loki.Claim) (bool, error) { return false, errNothing }
func (nothing) Release(context.Context, loki.Claim) error      { return errNothing }
func (nothing) Validate() error                                { return errNothing }
