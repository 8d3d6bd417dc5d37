package agenda_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/agenda"
)

// deadline is an entry that notes when it was called, in seconds since the bubble began.
type deadline struct {
	agenda.Entry
	mu     sync.Mutex
	called []int
}

// call is an owner that is a function.
type call func()

func (f call) Due() { f() }

func newDeadline(start time.Time, then func()) *deadline {
	d := &deadline{}
	d.Init(call(func() {
		d.mu.Lock()
		d.called = append(d.called, int(time.Since(start).Seconds()))
		d.mu.Unlock()
		then()
	}))
	return d
}

// calls returns when it was called, once what is due has been done.
func (d *deadline) calls() []int {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.called
}

func nothing() {}

func TestAgenda_CallsEachWhenItIsDueAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agenda.New(nothing)
		order := make(chan string, 4)
		entries := make(map[string]*agenda.Entry)
		for name, second := range map[string]int{"c": 30, "a": 10, "d": 40, "b": 20} {
			entries[name] = new(agenda.Entry)
			entries[name].Init(call(func() { order <- name }))
			a.Set(entries[name], time.Now().Add(time.Duration(second)*time.Second), 0)
		}
		start := time.Now()
		for i, name := range []string{"a", "b", "c", "d"} {
			require.Equal(t, name, <-order)
			require.Equal(t, time.Duration(i+1)*10*time.Second, time.Since(start))
		}
	})
}

func TestAgenda_SetAgainMovesTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, start := agenda.New(nothing), time.Now()
		later, earlier := newDeadline(start, nothing), newDeadline(start, nothing)
		a.Set(&later.Entry, start.Add(10*time.Second), 0)
		a.Set(&earlier.Entry, start.Add(30*time.Second), 0)
		a.Set(&later.Entry, start.Add(40*time.Second), 0)
		a.Set(&earlier.Entry, start.Add(5*time.Second), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{40}, later.calls())
		require.Equal(t, []int{5}, earlier.calls())
	})
}

func TestAgenda_AStoppedEntryIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, start := agenda.New(nothing), time.Now()
		stopped, other := newDeadline(start, nothing), newDeadline(start, nothing)
		require.False(t, a.Stop(&stopped.Entry), "it was never set")
		a.Set(&stopped.Entry, start.Add(time.Second), 0)
		a.Set(&other.Entry, start.Add(2*time.Second), 0)
		require.True(t, a.Stop(&stopped.Entry))
		require.False(t, a.Stop(&stopped.Entry), "once is enough")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, stopped.calls())
		require.Equal(t, []int{2}, other.calls())
		require.False(t, a.Stop(&other.Entry), "it has been called")

		a.Set(&stopped.Entry, time.Now().Add(time.Second), 0) // it can be set again, also on an agenda that was empty
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{61}, stopped.calls())
	})
}

func TestAgenda_ATimeThatHasPassedIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, start := agenda.New(nothing), time.Now()
		var mu sync.Mutex
		called := false
		var e agenda.Entry
		e.Init(call(func() {
			mu.Lock()
			defer mu.Unlock()
			called = true
		}))
		mu.Lock() // a caller may hold the mutex that the function locks
		a.Set(&e, start.Add(-time.Hour), 0)
		a.Set(&e, time.Time{}, 0)
		mu.Unlock()
		synctest.Wait()
		require.True(t, called)
		require.Zero(t, time.Since(start))
	})
}

func TestAgenda_AFunctionMaySetAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, start := agenda.New(nothing), time.Now()
		var again, stopped *deadline
		rest := 3
		stopped = newDeadline(start, nothing)
		again = newDeadline(start, func() {
			a.Stop(&stopped.Entry)
			if rest--; rest > 0 {
				a.Set(&again.Entry, time.Now().Add(time.Second), 0)
			}
		})
		a.Set(&again.Entry, start.Add(time.Second), 0)
		a.Set(&stopped.Entry, start.Add(time.Second+time.Millisecond), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{1, 2, 3}, again.calls())
		require.Empty(t, stopped.calls())
	})
}

// An entry that may be early joins another that is due, and is on time where none is.
func TestAgenda_AnEarlyEntryJoinsOneThatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, rests := time.Now(), []int(nil)
		a := agenda.New(func() { rests = append(rests, int(time.Since(start).Seconds())) })
		var entries []*deadline
		for _, e := range []struct{ at, early int }{{10, 2}, {11, 2}, {12, 2}, {13, 2}, {14, 0}, {15, 20}} {
			d := newDeadline(start, nothing)
			a.Set(&d.Entry, start.Add(time.Duration(e.at)*time.Second), time.Duration(e.early)*time.Second)
			entries = append(entries, d)
		}
		time.Sleep(time.Minute)
		var called []int
		for _, d := range entries {
			called = append(called, d.calls()...)
		}
		require.Equal(t, []int{10, 10, 10, 13, 14, 14}, called)
		require.Equal(t, []int{10, 13, 14}, rests, "once, when all that was due has been called")
	})
}

func TestAgenda_CallsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agenda.New(nothing)
		var running, most, calls atomic.Int64
		entries := make([]agenda.Entry, 4)
		for i := range entries {
			entries[i].Init(call(func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second) // which a function must not do: here another is set and due meanwhile
				running.Add(-1)
				calls.Add(1)
			}))
		}
		for i := range entries {
			a.Set(&entries[i], time.Now(), 0)
			time.Sleep(time.Second / 2)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, len(entries), calls.Load())
		for i := range entries { // what was set during a call has not left the timer in disorder
			a.Set(&entries[i], time.Now().Add(time.Minute), 0)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.EqualValues(t, 2*len(entries), calls.Load())
		require.EqualValues(t, 1, most.Load())
	})
}

// Every operation at random, compared with a list that is looked through.
func TestAgenda_IsALongListOfDeadlines(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			a, start := agenda.New(nothing), time.Now()
			entries := make([]*deadline, 50)
			want := make([][]int, len(entries))
			at := make([]int, len(entries)) // 0: not set
			for i := range entries {
				entries[i] = newDeadline(start, nothing)
			}
			for second := 1; second < 300; second++ {
				time.Sleep(time.Second)
				synctest.Wait()
				for i := range at {
					if at[i] == second {
						want[i] = append(want[i], second)
						at[i] = 0
					}
				}
				for range rng.IntN(20) {
					i := rng.IntN(len(entries))
					if rng.IntN(3) == 0 {
						require.Equal(t, at[i] != 0, a.Stop(&entries[i].Entry))
						at[i] = 0
						continue
					}
					at[i] = second + 1 + rng.IntN(40)
					a.Set(&entries[i].Entry, start.Add(time.Duration(at[i])*time.Second), 0)
				}
			}
			for i := range entries {
				require.Equal(t, want[i], entries[i].calls(), "entry %d of seed %d", i, seed)
			}
		})
	}
}

func TestAgenda_ManyGoroutinesAtOnce(t *testing.T) {
	a := agenda.New(nothing)
	var running, overlaps, calls atomic.Int64
	var wg sync.WaitGroup
	called := func() {
		if running.Add(1) > 1 {
			overlaps.Add(1)
		}
		runtime.Gosched()
		calls.Add(1)
		running.Add(-1)
	}
	start := time.Now()
	for range 8 {
		wg.Go(func() {
			entries, earliest := make([]agenda.Entry, 100), make([]agenda.Entry, 4)
			for i := range entries {
				entries[i].Init(call(called))
			}
			for i := range earliest {
				earliest[i].Init(call(called))
			}
			for i := range 5000 {
				e := &entries[i%len(entries)]
				a.Set(e, time.Now().Add(time.Duration(i%7)*100*time.Microsecond), 0)
				a.Set(&earliest[i%len(earliest)], start.Add(-time.Duration(i)), 0) // which sets a timer that has just fired
				if i%3 == 0 {
					a.Stop(e)
				}
			}
			for i := range entries {
				a.Stop(&entries[i])
			}
		})
	}
	wg.Wait()
	require.NotZero(t, calls.Load())
	require.Zero(t, overlaps.Load())
}

func TestAgenda_AllocatesNothingForADeadline(t *testing.T) {
	a := agenda.New(nothing)
	entries := make([]agenda.Entry, 2)
	for i := range entries {
		entries[i].Init(call(nothing))
		a.Set(&entries[i], time.Now().Add(time.Hour), 0)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range entries {
			a.Stop(&entries[i])
		}
		for i := range entries {
			a.Set(&entries[i], time.Now().Add(time.Hour), 0)
		}
	}))
}

// An agenda that nobody uses any more is not kept in memory by a deadline that was stopped, however far away it was.
func TestAgenda_IsForgottenWhenItIsEmpty(t *testing.T) {
	freed := make(chan struct{})
	func() {
		a := agenda.New(nothing)
		runtime.AddCleanup(a, func(c chan struct{}) { close(c) }, freed)
		var e agenda.Entry
		e.Init(call(nothing))
		a.Set(&e, time.Now().Add(1000*time.Hour), 0)
		a.Stop(&e)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	}, 10*time.Second, time.Millisecond)
}

func BenchmarkSetStop(b *testing.B) {
	for _, others := range []int{0, 100, 100_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			a, start := agenda.New(nothing), time.Now()
			entries := make([]agenda.Entry, others)
			for i := range entries {
				entries[i].Init(call(nothing))
				a.Set(&entries[i], start.Add(30*time.Second+rand.N(30*time.Second)), 0)
			}
			var e agenda.Entry
			e.Init(call(nothing))
			ats := make([]time.Time, 1024)
			for i := range ats {
				ats[i] = start.Add(30*time.Second + rand.N(30*time.Second))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				a.Set(&e, ats[i%len(ats)], 0)
				a.Stop(&e)
			}
		})
	}
}

// What it replaces: a timer for each deadline.
func BenchmarkAfterFuncStop(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		time.AfterFunc(time.Hour, nothing).Stop()
	}
}
