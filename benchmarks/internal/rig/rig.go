// Package rig lets a program use the servers that tests start.
package rig

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Rig is the part of a testing.TB that redistest and faultproxy need, for a program that is no test.
type Rig struct{ cleanups []func() }

// Run runs f with a Rig, and then what f left to clean up, the latest first. A server that did not start is an error.
func Run(f func(*Rig) error) (err error) {
	r := &Rig{}
	defer func() {
		reason := recover()
		for _, cleanup := range slices.Backward(r.cleanups) {
			cleanup()
		}
		switch failed, ok := reason.(failure); {
		case ok:
			err = failed
		case reason != nil:
			panic(reason)
		}
	}()
	return f(r)
}

type failure struct{ error }

// Helper does nothing.
func (*Rig) Helper() {}

// Cleanup has f called when the function given to Run has returned.
func (r *Rig) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Fatalf ends the function given to Run, on whose goroutine it has to be called, with an error.
func (*Rig) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Silence keeps go-redis from printing a line for each failed dial: while a server starts, nobody is there yet.
func Silence() { redis.SetLogger(quiet{}) }

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
