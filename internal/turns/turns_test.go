package turns_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/turns"
)

var noDeadline time.Time

func TestTurns_OneAtATimeForEachKey(t *testing.T) {
	q := turns.New()
	require.True(t, q.TryTake("a"))
	require.False(t, q.TryTake("a"))
	require.True(t, q.TryTake("b"), "another key")
	q.Done("a")
	require.True(t, q.Take(t.Context(), "a", noDeadline))
	q.Done("a")
	q.Done("b")
	require.Zero(t, q.InUse())
}

func TestTurns_FirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := turns.New()
		require.True(t, q.TryTake("k"))
		order := make(chan int, 10)
		for i := range 10 {
			go func() {
				if q.Take(t.Context(), "k", noDeadline) {
					order <- i
					q.Done("k")
				}
			}()
			synctest.Wait()
			require.Equal(t, i+1, q.Waiting("k"))
		}
		q.Done("k")
		for i := range 10 {
			require.Equal(t, i, <-order)
		}
		synctest.Wait()
		require.Zero(t, q.Waiting("k"))
		require.Zero(t, q.InUse())
	})
}

func TestTurns_TheTurnIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := turns.New()
		require.True(t, q.TryTake("k"))
		go func() {
			if q.Take(t.Context(), "k", noDeadline) {
				time.Sleep(time.Second)
				q.Done("k")
			}
		}()
		synctest.Wait()
		q.Done("k")
		require.False(t, q.TryTake("k"), "who waited has it, though it has not run yet")
		require.True(t, q.Take(t.Context(), "k", noDeadline))
		q.Done("k")
		require.Zero(t, q.InUse())
	})
}

func TestTurns_AWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := turns.New()
		require.True(t, q.TryTake("k"))

		start := time.Now()
		require.False(t, q.Take(t.Context(), "k", start.Add(time.Second)), "by the deadline")
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, q.Take(ctx, "k", start.Add(time.Minute)), "by the context")
		require.Equal(t, 2*time.Second, time.Since(start))

		q.Done("k")
		require.False(t, q.Take(ctx, "k", noDeadline), "too late, though nobody has it")
		require.False(t, q.Take(t.Context(), "k", time.Now()))
		require.Zero(t, q.InUse())
	})
}

func TestTurns_WhoeverLeavesTheLineKeepsItInOrder(t *testing.T) {
	for leaves := range 3 { // the first, one in the middle, the last
		synctest.Test(t, func(t *testing.T) {
			q := turns.New()
			require.True(t, q.TryTake("k"))
			order := make(chan int, 3)
			ctx, cancel := context.WithCancel(t.Context())
			for i := range 3 {
				life := t.Context()
				if i == leaves {
					life = ctx
				}
				go func() {
					if q.Take(life, "k", noDeadline) {
						order <- i
						q.Done("k")
					}
				}()
				synctest.Wait()
			}
			cancel()
			synctest.Wait()
			require.Equal(t, 2, q.Waiting("k"))
			q.Done("k")
			for i := range 3 {
				if i != leaves {
					require.Equal(t, i, <-order)
				}
			}
			synctest.Wait()
			require.Zero(t, q.InUse())
		})
	}
}

// The context of one who waits ends at the moment at which it is handed the turn.
func TestTurns_ATurnThatComesTooLateIsPassedOn(t *testing.T) {
	for range 50 { // select chooses at random
		synctest.Test(t, func(t *testing.T) {
			q := turns.New()
			require.True(t, q.TryTake("k"))
			ctx, cancel := context.WithCancel(t.Context())
			late := make(chan bool, 1)
			go func() { late <- q.Take(ctx, "k", noDeadline) }()
			synctest.Wait()
			next := make(chan bool, 1)
			go func() { next <- q.Take(t.Context(), "k", noDeadline) }()
			synctest.Wait()
			cancel()
			q.Done("k")
			require.False(t, <-late)
			require.True(t, <-next)
			q.Done("k")
			require.Zero(t, q.InUse())
		})
	}
}

func TestTurns_DoneWithoutATurnIsAMistake(t *testing.T) {
	require.Panics(t, func() { turns.New().Done("k") })
}

func TestTurns_ManyGoroutinesAtOnce(t *testing.T) {
	q := turns.New()
	var inside [3]int // guarded by the turns alone: the race detector sees two at once
	var got, missed atomic.Int64
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range 300 {
				k := rng.IntN(len(inside))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(200))*time.Microsecond)
				if q.Take(ctx, strconv.Itoa(k), noDeadline) {
					inside[k]++
					got.Add(1)
					q.Done(strconv.Itoa(k))
				} else {
					missed.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, got.Load(), inside[0]+inside[1]+inside[2])
	require.EqualValues(t, 16*300, got.Load()+missed.Load())
	require.NotZero(t, got.Load())
	require.Zero(t, q.InUse(), "nothing is left of a key that is not in use")
}

func BenchmarkTryTakeDone(b *testing.B) {
	q := turns.New()
	b.ReportAllocs()
	for b.Loop() {
		q.TryTake("k")
		q.Done("k")
	}
}

func BenchmarkTakeDoneContended(b *testing.B) {
	q := turns.New()
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if q.Take(b.Context(), "k", noDeadline) {
				q.Done("k")
			}
		}
	})
}
