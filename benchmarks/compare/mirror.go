package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/redishandler"
)

const (
	primaryOnly   = "loki-primary-only"
	secondaryOnly = "loki-secondary-only"

	mirrorFn      = 5 * time.Millisecond // how long fn takes
	mirrorCallers = 4                    // at once, each with a lock of its own
	mirrored      = "%-mirrored"
	late          = "late" // mirror writes for which the secondary was too slow
)

// mirroredAsync is what a secondary, PostgreSQL, costs the callers while both stores are well.
var mirroredAsync = work{"MirroredAsync", settings.throughputRounds, func(l *lab, tb *rig.Rig) (map[string]measure, error) {
	secondary, err := startPostgres(tb)
	if err != nil {
		return nil, err
	}
	measures := make(map[string]measure)
	for name, handler := range map[string]loki.LockHandler{primaryOnly: nil, lokiName: secondary} {
		client := dialHeedful(l.addr)
		tb.Cleanup(func() { _ = client.Close() })
		m := &mirrorMeasure{secondary: handler != nil}
		m.locker, err = openLocker(tb, loki.Config{
			ServiceKey: "mirror-" + name, Primary: redishandler.New(client), PrimaryTimeout: patience,
			Secondary: handler, SecondaryTimeout: patience, Observer: m.observe,
		})
		if err != nil {
			return nil, err
		}
		measures[name] = m.slice
	}
	return measures, nil
}}

type mirrorMeasure struct {
	locker    *loki.Locker
	secondary bool

	acquired, mirrored, late atomic.Int64 // by the events
}

func (m *mirrorMeasure) observe(_ context.Context, e loki.Event) {
	switch e.Kind {
	case loki.KindAcquired:
		m.acquired.Add(1)
	case loki.KindMirrored:
		m.mirrored.Add(1)
	case loki.KindMirrorLate:
		m.late.Add(1)
	}
}

func (m *mirrorMeasure) slice() (sample, error) {
	m.acquired.Store(0)
	m.mirrored.Store(0)
	m.late.Store(0)
	var sum atomic.Int64
	s, err := benchmark(func(b *testing.B) error {
		var all errgroup.Group
		var begun atomic.Int64
		sum.Store(0)
		for i := range mirrorCallers {
			resource := loki.WithResource(fmt.Sprint(i))
			all.Go(func() error {
				for begun.Add(1) <= int64(b.N) {
					start := time.Now()
					if err := m.locker.ExecuteWithinLock(context.Background(), expiry, sleep, resource); err != nil {
						return err
					}
					sum.Add(int64(time.Since(start)))
				}
				return nil
			})
		}
		return all.Wait()
	})
	if err != nil {
		return sample{}, err
	}
	s.values[nsPerOp] = float64(sum.Load()) / float64(s.n) // of a call, with its fn
	if m.secondary {
		s.values[mirrored] = 100 * m.share()
		s.values[late] = float64(m.late.Load())
	}
	return s, nil
}

// share returns how many of the locks have been mirrored, when the last of them have had time for it.
func (m *mirrorMeasure) share() float64 {
	for end := time.Now().Add(time.Second); m.mirrored.Load() < m.acquired.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return float64(m.mirrored.Load()) / float64(m.acquired.Load())
}

func sleep(context.Context) error {
	time.Sleep(mirrorFn)
	return nil
}
