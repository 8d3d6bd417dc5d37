package keyqueue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/keyqueue"
)

const (
	urgent = iota
	ordinary
	classes
)

// owner has work for keys, each piece of which takes a while.
type owner struct {
	t     *testing.T
	queue *keyqueue.Queue
	takes map[string]time.Duration // by key; a millisecond if there is none

	mu    sync.Mutex
	due   map[string][]int // classes of the work that is due
	at    map[string]time.Time
	done  []string
	busy  map[string]bool
	under int
	most  int
}

func newOwner(t *testing.T, slots, limit int) *owner {
	t.Helper()
	o := &owner{t: t, takes: make(map[string]time.Duration), due: make(map[string][]int), at: make(map[string]time.Time), busy: make(map[string]bool)}
	o.queue = keyqueue.New(keyqueue.Config{Classes: classes, Slots: slots, Patience: 50 * time.Millisecond, Limit: limit, Due: o.next, Work: o.work})
	return o
}

func (o *owner) next(key string) (int, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	class := keyqueue.Nothing
	for _, c := range o.due[key] {
		if class == keyqueue.Nothing || c < class {
			class = c
		}
	}
	if at := o.at[key]; class == keyqueue.Nothing && time.Now().Before(at) {
		return class, at
	} else if class == keyqueue.Nothing && !at.IsZero() {
		delete(o.at, key)
		o.due[key] = append(o.due[key], ordinary)
		return ordinary, time.Time{}
	}
	return class, time.Time{}
}

func (o *owner) add(key string, class int) {
	o.mu.Lock()
	o.due[key] = append(o.due[key], class)
	o.mu.Unlock()
	o.queue.Changed(key)
}

func (o *owner) work(key string) {
	o.mu.Lock()
	if o.busy[key] {
		o.t.Errorf("%s has two pieces of work at once", key)
	}
	if len(o.due[key]) == 0 {
		o.mu.Unlock()
		return
	}
	class, at := o.due[key][0], 0
	for i, c := range o.due[key] {
		if c < class {
			class, at = c, i
		}
	}
	o.due[key] = append(o.due[key][:at:at], o.due[key][at+1:]...)
	o.busy[key] = true
	o.under++
	o.most = max(o.most, o.under)
	o.mu.Unlock()
	time.Sleep(max(o.takes[key], time.Millisecond))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy[key] = false
	o.under--
	o.done = append(o.done, fmt.Sprint(key, class))
}

func (o *owner) finished() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.done...)
}

func soon() time.Time { return time.Now().Add(time.Hour) }

func TestQueue_OneAtATimeForEachKeyAndAFewInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 3, 10)
		for i := range 20 {
			for range 3 {
				o.add(fmt.Sprint("k", i), ordinary)
			}
		}
		time.Sleep(time.Second)
		require.Len(t, o.finished(), 60)
		require.Equal(t, 3, o.most)
		require.Zero(t, o.queue.Sites(), "a key is forgotten when it has no work")
	})
}

func TestQueue_UrgentWorkGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 1, 10)
		o.add("running", ordinary)
		for i := range 5 {
			o.add(fmt.Sprint("late", i), ordinary)
		}
		o.add("late3", urgent) // it waits already, and becomes urgent
		o.add("new", urgent)
		time.Sleep(time.Second)
		require.Equal(t, []string{"running1", "late30", "new0", "late01", "late11", "late21", "late31", "late41"}, o.finished())
	})
}

func TestQueue_WorkThatHangsGivesItsSlotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 2, 4)
		for i := range 10 {
			o.takes[fmt.Sprint("hangs", i)] = time.Minute
		}
		for i := range 10 {
			o.add(fmt.Sprint("hangs", i), urgent)
		}
		o.add("well", urgent)
		time.Sleep(10 * time.Minute)
		require.Contains(t, o.finished(), "well0")
		require.Equal(t, 4, o.most, "but no more than the limit hang")
	})
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 2, 100)
		for i := range 10 {
			o.takes[fmt.Sprint("hangs", i)] = time.Hour
		}
		for i := range 10 {
			o.add(fmt.Sprint("hangs", i), ordinary)
		}
		o.add("well", urgent)
		time.Sleep(60 * time.Millisecond)
		require.Equal(t, []string{"well0"}, o.finished())
		time.Sleep(2 * time.Hour)
	})
}

func TestQueue_LooksAgainWhenItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 1, 10)
		o.at["later"] = time.Now().Add(time.Minute)
		o.queue.Changed("later")
		time.Sleep(59 * time.Second)
		require.Empty(t, o.finished())
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"later1"}, o.finished())
	})
}

func TestTake_CallersAndWorkShareATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 1, 10)
		require.True(t, o.queue.Take(t.Context(), "k", soon()))
		o.add("k", urgent)
		o.add("k", ordinary)
		var order []string
		var callers sync.WaitGroup
		for _, name := range []string{"first", "second"} {
			callers.Go(func() {
				require.True(t, o.queue.Take(t.Context(), "k", soon()))
				order = append(order, fmt.Sprint(name, o.finished()))
				time.Sleep(time.Millisecond)
				o.queue.Done("k")
			})
			synctest.Wait()
		}
		require.Equal(t, 2, o.queue.Waiting("k"))
		require.Empty(t, o.finished(), "the turn is taken")
		o.queue.Done("k")
		callers.Wait()
		synctest.Wait()
		time.Sleep(time.Second)
		require.Equal(t, []string{"first[k0]", "second[k0]"}, order, "urgent work goes before a caller, other work behind all of them")
		require.Equal(t, []string{"k0", "k1"}, o.finished())
		require.Zero(t, o.queue.Sites())
	})
}

func TestTake_EndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 1, 10)
		require.True(t, o.queue.Take(t.Context(), "k", soon()))
		require.False(t, o.queue.Take(t.Context(), "k", time.Now().Add(time.Second)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, o.queue.Take(ctx, "k", soon()))
		require.Zero(t, o.queue.Waiting("k"))
		o.queue.Done("k")
		require.Zero(t, o.queue.Sites())
		require.True(t, o.queue.Take(t.Context(), "k", soon()))
		o.queue.Done("k")
	})
}

// A turn that is handed over at the moment in which its caller gives up is passed on.
func TestTake_NoTurnIsLost(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			o := newOwner(t, 1, 10)
			require.True(t, o.queue.Take(t.Context(), "k", soon()))
			deadline := time.Now().Add(time.Millisecond)
			var callers sync.WaitGroup
			for range 5 {
				callers.Go(func() {
					if o.queue.Take(t.Context(), "k", deadline) {
						o.queue.Done("k")
					}
				})
			}
			time.Sleep(time.Millisecond)
			o.queue.Done("k")
			callers.Wait()
			require.True(t, o.queue.Take(t.Context(), "k", time.Now().Add(time.Second)))
			o.queue.Done("k")
			require.Zero(t, o.queue.Sites())
		})
	}
}

func TestBehind_IsHowLongWorkHasWaitedForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, 1, 1)
		o.takes["hangs"] = time.Minute
		o.add("hangs", ordinary)
		o.add("waits", ordinary)
		time.Sleep(10 * time.Second)
		require.Equal(t, 10*time.Second, o.queue.Behind(ordinary))
		require.Equal(t, 1, o.queue.Queued(ordinary))
		require.Zero(t, o.queue.Behind(urgent))
		time.Sleep(time.Minute)
		require.Zero(t, o.queue.Behind(ordinary))
	})
}

// Work that is not due any more waits for no slot.
func TestQueued_CountsWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		due := map[string]int{}
		q := keyqueue.New(keyqueue.Config{
			Classes: 2, Slots: 1, Patience: time.Hour, Limit: 1,
			Due: func(key string) (int, time.Time) {
				if class, ok := due[key]; ok {
					return class, time.Time{}
				}
				return keyqueue.Nothing, time.Time{}
			},
			Work: func(key string) { delete(due, key); <-hang },
		})
		change := func(key string, class int) {
			if due[key] = class; class == keyqueue.Nothing {
				delete(due, key)
			}
			q.Changed(key)
			synctest.Wait()
		}
		change("hangs", 1)
		require.Zero(t, q.Queued(1))
		for range 100 { // one key again and again
			change("a", 1)
			require.Equal(t, 1, q.Queued(1))
			change("a", keyqueue.Nothing)
			require.Zero(t, q.Queued(1))
			require.Zero(t, q.Behind(1))
		}
		require.LessOrEqual(t, q.Listed(1), 1)
		change("a", 1)
		change("a", 0)
		require.Equal(t, []int{1, 0}, []int{q.Queued(0), q.Queued(1)})
		change("b", 1)
		close(hang)
		synctest.Wait()
		require.Empty(t, due)
		require.Zero(t, q.Queued(0)+q.Queued(1)+q.Sites())
	})
}

func TestTheTurnOfAFreeKeyCostsNoAllocation(t *testing.T) {
	q := keyqueue.New(keyqueue.Config{Classes: 1, Slots: 1, Patience: time.Hour, Limit: 1,
		Due:  func(string) (int, time.Time) { return keyqueue.Nothing, time.Time{} },
		Work: func(string) {},
	})
	keys := []string{"a", "b"}
	n := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n++
		require.True(t, q.Take(t.Context(), keys[n%2], time.Now().Add(time.Minute)))
		q.Done(keys[n%2])
	}))
}
