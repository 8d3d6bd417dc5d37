package main

import (
	"context"
	"testing"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/memhandler"
)

// coreAlone is what is left of acquireRelease when the store costs nothing.
var coreAlone = work{"Core", settings.throughputRounds, func(_ *lab, tb *rig.Rig) (map[string]measure, error) {
	locker, err := openLocker(tb, loki.Config{ServiceKey: oneKey, Primary: memhandler.New()})
	if err != nil {
		return nil, err
	}
	return map[string]measure{lokiName: func() (sample, error) {
		return benchmark(func(b *testing.B) error {
			for b.Loop() {
				if err := locker.ExecuteWithinLock(context.Background(), expiry, doNothing); err != nil {
					return err
				}
			}
			return nil
		})
	}}, nil
}}

// openLocker makes a Locker and closes it with tb.
func openLocker(tb *rig.Rig, config loki.Config) (*loki.Locker, error) {
	locker, err := loki.New(config)
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() { _ = locker.Close(context.Background()) })
	return locker, nil
}
