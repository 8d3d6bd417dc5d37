package loki_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// The benchmarks of the core: its stores are in memory and cost next to nothing. What real stores and other libraries take is
// measured by `make bench`.

const benchExpiry = 10 * time.Second

// benchLocker returns a Locker that is closed with b.
func benchLocker(b *testing.B, change ...func(*loki.Config)) *loki.Locker {
	b.Helper()
	config := loki.Config{ServiceKey: "bench", Primary: memhandler.New()}
	for _, f := range change {
		f(&config)
	}
	l, err := loki.New(config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	b.ReportAllocs()
	return l
}

func doNothing(context.Context) error { return nil }

func BenchmarkExecute(b *testing.B) {
	l := benchLocker(b)
	for b.Loop() {
		if err := l.ExecuteWithinLock(b.Context(), benchExpiry, doNothing); err != nil {
			b.Fatal(err)
		}
	}
}

// Each goroutine has a lock of its own.
func BenchmarkExecuteParallel(b *testing.B) {
	l := benchLocker(b)
	var goroutines atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		resource := loki.WithResource(fmt.Sprint(goroutines.Add(1)))
		for pb.Next() {
			if err := l.ExecuteWithinLock(b.Context(), benchExpiry, doNothing, resource); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkAcquireAndRelease(b *testing.B) {
	l := benchLocker(b)
	for b.Loop() {
		lease, err := l.Acquire(b.Context(), benchExpiry)
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBusyInThisProcess(b *testing.B) {
	l := benchLocker(b)
	benchBusy(b, l, l)
}

func BenchmarkBusyInTheStore(b *testing.B) {
	store := memhandler.New()
	sharing := func(c *loki.Config) { c.Primary = store }
	benchBusy(b, benchLocker(b, sharing), benchLocker(b, sharing))
}

func benchBusy(b *testing.B, holder, other *loki.Locker) {
	lease, err := holder.Acquire(b.Context(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := other.ExecuteWithinLock(b.Context(), benchExpiry, doNothing); !errors.Is(err, loki.ErrBusy) {
			b.Fatal("not busy:", err)
		}
	}
	if err := lease.Release(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// Goroutines of one process take one lock in turn. An operation is one turn.
func BenchmarkHandOver(b *testing.B) {
	for _, waiters := range []int{2, 16} {
		b.Run(fmt.Sprint("goroutines=", waiters), func(b *testing.B) {
			l := benchLocker(b)
			var begun atomic.Int64
			var all sync.WaitGroup
			for range waiters {
				all.Go(func() {
					for begun.Add(1) <= int64(b.N) {
						if err := l.ExecuteWithinLock(b.Context(), benchExpiry, doNothing, loki.WithWait(loki.UntilDone)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// The mirror writes are made in the background, as far as the locks last until they begin.
func BenchmarkMirrorAsync(b *testing.B) { benchMirrored(b, loki.MirrorAsync) }

func BenchmarkMirrorSync(b *testing.B) { benchMirrored(b, loki.MirrorSync) }

func benchMirrored(b *testing.B, mode loki.MirrorMode) {
	l := benchLocker(b, func(c *loki.Config) { c.Secondary, c.Mirror = memhandler.New(), mode })
	for b.Loop() {
		if err := l.ExecuteWithinLock(b.Context(), benchExpiry, doNothing); err != nil {
			b.Fatal(err)
		}
	}
}
