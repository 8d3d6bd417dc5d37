package eventqueue_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/eventqueue"
)

// log is what a queue of strings has handled.
type log struct {
	eventqueue.Queue[string]
	mu  sync.Mutex
	got []string
}

// newLog returns a queue with room for ten that calls handle before it notes a value.
func newLog(handle func(string)) *log {
	l := &log{}
	l.Limit = 10
	l.Handle = func(v string) {
		handle(v)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.got = append(l.got, v)
	}
	l.Dropped = func(last string, n int) string { return fmt.Sprintf("dropped %d up to %s", n, last) }
	l.Panicked = func(v string, reason any, stack []byte) string {
		return fmt.Sprintf("panic on %s: %v, stack %v", v, reason, strings.Contains(string(stack), "eventqueue_test.go"))
	}
	return l
}

func (l *log) handled() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.got...)
}

func (l *log) addAll(values ...string) {
	for _, v := range values {
		l.Add(v, false)
	}
}

func numbers(from, to int) (all []string) {
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func nothing(string) {}

func TestQueue_HandlesInOrderAndOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		l := newLog(func(string) {
			if running.Add(1) > 1 {
				panic("two at once")
			}
			time.Sleep(time.Second)
			running.Add(-1)
		})
		start := time.Now()
		l.addAll(numbers(1, 5)...)
		require.Zero(t, time.Since(start), "it delays nobody")
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, 5*time.Second, time.Since(start))
		l.addAll(numbers(6, 10)...)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, numbers(1, 10), l.handled())
	}) // which waits for the queue's goroutine: it ends when there is nothing left
}

func TestQueue_ReportsAGapWhereItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		l := newLog(func(string) { <-until })
		l.Add("0", false)
		synctest.Wait() // it is being handled, and does not wait any more
		l.addAll(numbers(1, 13)...)
		l.Add("important", true)
		l.addAll("14", "15")
		close(until)
		require.NoError(t, l.Flush(t.Context()))
		want := append(numbers(0, 10), "dropped 3 up to 13", "important", "dropped 2 up to 15")
		require.Equal(t, want, l.handled())
		l.Add("again", false)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, append(want, "again"), l.handled())
	})
}

func TestQueue_ReportsAGapAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		l := newLog(func(string) { <-until })
		l.addAll(numbers(1, 20)...)
		close(until)
		synctest.Wait()
		got := l.handled()
		require.Regexp(t, `dropped \d+ up to 20`, got[len(got)-1])
	})
}

func TestQueue_ImportantValuesHaveTwiceTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		l := newLog(func(string) { <-until })
		l.Add("0", false)
		synctest.Wait()
		l.addAll(numbers(1, 10)...)
		for _, v := range numbers(11, 25) {
			l.Add(v, true)
		}
		close(until)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, append(numbers(0, 20), "dropped 5 up to 25"), l.handled())
	})
}

func TestQueue_NeverGrowsBeyondItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(func(string) { time.Sleep(time.Second) })
		for i := range 1000 { // it is never empty meanwhile
			l.Add(fmt.Sprint(i), false)
			time.Sleep(time.Second - time.Millisecond)
		}
		require.LessOrEqual(t, l.Room(), 64)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, numbers(0, 999), l.handled())
	})
}

func TestQueue_GivesTheRoomOfABurstBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(nothing)
		l.Limit = 1000
		l.addAll(numbers(1, 1000)...)
		require.NoError(t, l.Flush(t.Context()))
		synctest.Wait()
		require.LessOrEqual(t, l.Room(), 64)
	})
}

func TestQueue_APanicIsReportedAndEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(func(v string) {
			if v == "2" {
				panic("bug")
			}
		})
		l.addAll(numbers(1, 3)...)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, []string{"1", "panic on 2: bug, stack true", "3"}, l.handled())
	})
}

func TestQueue_APanicOnTheReportIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		l := newLog(func(string) {
			calls.Add(1)
			panic("bug")
		})
		l.addAll(numbers(1, 3)...)
		require.NoError(t, l.Flush(t.Context()))
		require.EqualValues(t, 6, calls.Load(), "each value and each report, once")
	})
}

func TestQueue_AnEndedGoroutineTakesNothingWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		l := newLog(func(v string) {
			<-until
			if v == "2" || v == "dropped 2 up to 12" || v == "panic on 4: bug, stack true" {
				runtime.Goexit()
			}
			if v == "4" {
				panic("bug")
			}
		})
		l.Add("0", false)
		synctest.Wait()
		l.addAll(numbers(1, 12)...)
		l.Add("important", true)
		close(until)
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, []string{"0", "1", "3", "5", "6", "7", "8", "9", "10", "important"}, l.handled())
		l.Add("later", false)
		require.NoError(t, l.Flush(t.Context()))
		require.Contains(t, l.handled(), "later")
	})
}

func TestFlush_WaitsForWhatCameBeforeItOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *log
		var stop atomic.Bool
		l = newLog(func(v string) {
			time.Sleep(time.Second)
			if !stop.Load() {
				l.Add(v, false) // there is always another one
			}
		})
		require.NoError(t, l.Flush(t.Context()), "nothing has been added")
		l.Add("v", false)
		start := time.Now()
		require.NoError(t, l.Flush(t.Context()))
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.ErrorIs(t, l.Flush(ctx), context.DeadlineExceeded)
		stop.Store(true)
		require.NoError(t, l.Flush(t.Context()))
	})
}

func TestQueue_ManyGoroutinesAtOnce(t *testing.T) {
	const each = 1000
	l := newLog(nothing)
	l.Limit = 8 * each
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range each {
				l.Add(fmt.Sprint(i), false)
				if i%100 == 0 {
					_ = l.Flush(t.Context())
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, l.Flush(t.Context()))
	require.Len(t, l.handled(), 8*each)
}
