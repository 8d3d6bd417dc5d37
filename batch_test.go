package loki_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/stretchr/testify/require"
)

const batchExpiry = 30 * time.Second

// acquire acquires that many leases, for resources that are numbered from the given one on.
func (r *rig) acquire(l *loki.Locker, from, n int) []*loki.Lease {
	r.t.Helper()
	return r.acquireFor(batchExpiry, l, from, n)
}

func (r *rig) acquireFor(expiry time.Duration, l *loki.Locker, from, n int) []*loki.Lease {
	r.t.Helper()
	var leases []*loki.Lease
	for i := range n {
		ls, err := l.Acquire(r.t.Context(), expiry, loki.WithResource(fmt.Sprintf("%04d", from+i)))
		require.NoError(r.t, err)
		leases = append(leases, ls)
	}
	return leases
}

// renewals returns the requests to extend that the primary has got, as "batch at", once for each batch.
func (r *rig) renewals(start time.Time) []string {
	synctest.Wait()
	var all []string
	left := 0
	for _, c := range r.primary.Calls(lokitest.OpExtend) {
		if left > 0 {
			left--
			continue
		}
		left = max(c.Batch-1, 0)
		all = append(all, fmt.Sprintf("%d at %v", c.Batch, c.Start.Sub(start)))
	}
	return all
}

func TestBatch_IsWhatIsDueTogether(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone)
		r.acquire(l, 0, 3)
		time.Sleep(25 * time.Second)
		require.Equal(t, []string{"3 at 10s", "3 at 20s"}, r.renewals(start))
	})
}

func TestBatch_IsNotMadeForOneLease(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone)
		r.acquire(l, 0, 1)
		time.Sleep(5 * time.Second)
		r.acquire(l, 1, 1)
		time.Sleep(11 * time.Second)
		require.Equal(t, []string{"0 at 10s", "0 at 15s"}, r.renewals(start))
	})
}

// A lease that is due a little later joins those that are due, and stays with them.
func TestBatch_BringsRenewalsForward(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone)
		r.acquire(l, 0, 1)
		time.Sleep(batchExpiry / loki.EarlyFraction)
		r.acquire(l, 1, 1)
		time.Sleep(time.Millisecond)
		r.acquire(l, 2, 1)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"2 at 10s", "0 at 10.626s", "2 at 20s", "0 at 20.626s"}, r.renewals(start))
	})
}

func TestBatch_IsBounded(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		n := 2*loki.MaxBatch + 44
		r.acquire(l, 0, n)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		sizes := make(map[int]int)
		for _, c := range r.primary.Calls(lokitest.OpExtend) {
			sizes[c.Batch]++
		}
		require.Equal(t, map[int]int{loki.MaxBatch: 2 * loki.MaxBatch, 44: 44}, sizes)
	})
}

// Under MirrorSync the secondary has to agree, and each lease asks that in its key's turn.
func TestBatch_IsNotMadeUnderMirrorSync(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(inSync)
		r.acquire(l, 0, 2)
		time.Sleep(11 * time.Second)
		require.Equal(t, []string{"0 at 10s", "0 at 10s"}, r.renewals(start))
	})
}

// oneByOne hides that a store extends many claims at once.
type oneByOne struct{ *testStore }

func (oneByOne) ExtendAll(context.Context, []loki.Claim) ([]loki.Extended, error) {
	return nil, fmt.Errorf("one by one: %w", errors.ErrUnsupported)
}

// Whatever happens to a batch, each lease's own story is what it would have been without: what a store was asked after it,
// what was reported, and when the lease ended.
func TestBatch_ChangesNothingForALease(t *testing.T) {
	swallow := lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
	deaf := lokitest.Fault{Before: lokitest.Pause{For: time.Minute, IgnoreCtx: true}}
	at := func(fault lokitest.Fault) func(*rig) {
		return func(r *rig) { r.primary.faults.Set(lokitest.OpExtend, fault) }
	}
	for name, happens := range map[string]func(*rig){
		"nothing":                   func(*rig) {},
		"the store is down":         func(r *rig) { r.primary.fail(errDown) },
		"extending fails":           at(lokitest.Fault{Err: errDown}),
		"a permanent error":         at(lokitest.Fault{Err: errors.New("no permission")}),
		"the reply is lost":         at(lokitest.Fault{Err: errDown, LostReply: true}),
		"it panics":                 at(lokitest.Fault{Panic: "odd"}),
		"it hangs":                  at(swallow),
		"it hangs and heeds no ctx": at(deaf),
		"the store hangs":           func(r *rig) { r.primary.hang() },
		"it is slow":                at(lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}}),
		"it is very slow":           at(lokitest.Fault{Before: lokitest.Pause{For: 300 * time.Millisecond}}),
		"a first attempt hangs": func(r *rig) {
			r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
				if op == lokitest.OpExtend && !c.Repeated {
					return swallow
				}
				return lokitest.Fault{}
			})
		},
		"one is lost": func(r *rig) {
			c := r.primary.Calls(lokitest.OpLock)[1].Claim
			require.NoError(r.t, r.primary.mem.Release(r.t.Context(), c))
		},
		"all are lost": func(r *rig) {
			for _, c := range r.primary.Calls(lokitest.OpLock) {
				require.NoError(r.t, r.primary.mem.Release(r.t.Context(), c.Claim))
			}
		},
	} {
		for mode, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}} {
			for _, expiry := range []time.Duration{batchExpiry, time.Second} {
				t.Run(fmt.Sprint(mode, "/", name, "/", expiry), func(t *testing.T) {
					require.Equal(t, batchStory(t, expiry, change, happens, true), batchStory(t, expiry, change, happens, false))
				})
			}
		}
	}
}

// batchStory is what three leases live through: for each, in order, when it was reported what.
func batchStory(t *testing.T, expiry time.Duration, mode func(*loki.Config), happens func(*rig), batches bool) (stories map[string][]string) {
	stories = make(map[string][]string)
	var mu sync.Mutex // guards stories
	tell := func(key, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		stories[key] = append(stories[key], fmt.Sprintf(format, args...))
	}
	inRig(t, func(t *testing.T, r *rig) {
		start := time.Now()
		l := r.locker(mode, func(c *loki.Config) {
			if !batches {
				c.Primary = oneByOne{r.primary}
			}
			c.Observer = func(_ context.Context, e loki.Event) {
				switch e.Kind {
				case loki.KindDown, loki.KindUp, loki.KindPanic: // one for all keys
				case loki.KindReleased: // when, is jittered if the first attempt fails
				case loki.KindMirrored: // a mirror write may come between falling back and noting that, and has the secondary renewed again
				default:
					if e.Kind == loki.KindRenewed && e.Store == loki.Secondary && e.Op == loki.OpExtend {
						return
					}
					tell(e.Key, "%v %s %s %s took %v", time.Since(start), e.Kind, e.Store, e.Op, e.Took)
				}
			}
		})
		leases := r.acquireFor(expiry, l, 0, 3)
		time.Sleep(expiry / 6)
		happens(r)
		time.Sleep(expiry)
		r.primary.heal()
		time.Sleep(expiry)
		for _, ls := range leases {
			released := ls.Release(t.Context())
			synctest.Wait()
			tell(ls.Key(), "%v released: %v", time.Since(start), released)
		}
		synctest.Wait()
		batched := slices.ContainsFunc(r.primary.Calls(lokitest.OpExtend), func(c lokitest.Call) bool { return c.Batch > 0 })
		require.Equal(t, batches, batched)
	})
	for key, story := range stories {
		for i, line := range story { // pauses between attempts are jittered
			when, rest, _ := strings.Cut(line, " ")
			d, err := time.ParseDuration(when)
			require.NoError(t, err)
			story[i] = fmt.Sprint(d.Round(expiry/300), " ", rest)
		}
		slices.Sort(story) // what happens at one instant has no order
		// A lease that a mirror write has overtaken is renewed once more at once, with what that reports.
		stories[key] = slices.Compact(story)
	}
	return stories
}

// A lease is trusted from before its batch was sent, not from its answer.
func TestBatch_ConfirmsFromWhenItWasSent(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone)
		leases := r.acquire(l, 0, 2)
		r.primary.faults.Next(lokitest.OpExtend, lokitest.Fault{After: lokitest.Pause{For: 100 * time.Millisecond}})
		time.Sleep(11 * time.Second)
		require.Equal(t, []string{"2 at 10s"}, r.renewals(start))
		r.primary.fail(errDown)
		for _, ls := range leases {
			<-ls.Context().Done()
		}
		require.Equal(t, 40*time.Second-loki.Margin(batchExpiry), time.Since(start))
		r.primary.heal()
	})
}

// The request of a batch may arrive after the release of one of its leases, which therefore waits for it.
func TestBatch_IsFollowedByTheReleaseOfItsLeases(t *testing.T) {
	for name, pause := range map[string]time.Duration{"slow": 100 * time.Millisecond, "late": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone)
				ls := r.acquire(l, 0, 2)[0]
				r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{For: pause}})
				time.Sleep(10*time.Second + 10*time.Millisecond)
				begun := time.Now()
				require.NoError(t, ls.Release(t.Context()))
				require.Equal(t, pause-10*time.Millisecond, time.Since(begun))
				require.Len(t, r.primary.Calls(lokitest.OpRelease), 1)
			})
		})
	}
}

// What waits for its batch has not begun, and is not waited for.
func TestBatch_ALeaseThatWaitsForOneIsReleasedAtOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		under := loki.MaxBatches * loki.MaxBatch
		leases := r.acquire(l, 0, under+2)
		r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{For: 100 * time.Millisecond}})
		time.Sleep(10*time.Second + 10*time.Millisecond)
		asked := make(map[string]bool)
		for _, c := range r.primary.Calls(lokitest.OpExtend) {
			asked[c.Claim.Key] = true
		}
		require.Len(t, asked, under, "no more are under way at once")
		for _, ls := range leases {
			if !asked[ls.Key()] {
				begun := time.Now()
				require.NoError(t, ls.Release(t.Context()))
				require.Zero(t, time.Since(begun))
			}
		}
		time.Sleep(time.Second)
		require.Len(t, r.primary.Calls(lokitest.OpExtend), under)
	})
}

// While a batch has no answer in its time, every lease goes alone: those in it, those that wait, and those that are due later.
func TestBatch_ThatIsLateKeepsNoLeaseWaiting(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone)
		under := loki.MaxBatches * loki.MaxBatch
		r.acquire(l, 0, under+loki.MaxBatch)
		time.Sleep(time.Second)
		r.acquire(l, under+loki.MaxBatch, 2)
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if op == lokitest.OpExtend && !c.Repeated && time.Since(start) < 10*time.Second+time.Millisecond {
				return lokitest.Fault{Before: lokitest.Pause{For: 5 * time.Second, IgnoreCtx: true}}
			}
			return lokitest.Fault{}
		})
		time.Sleep(11 * time.Second)
		synctest.Wait()
		late := start.Add(10*time.Second + loki.DefaultPrimaryTimeout/4)
		again, alone, later := 0, 0, 0
		for _, c := range r.primary.Calls(lokitest.OpExtend) {
			switch {
			case c.Batch > 0:
				require.Equal(t, start.Add(10*time.Second), c.Start)
			case c.Claim.Repeated:
				again++
				require.Equal(t, late, c.Start)
			case c.Start.Equal(late):
				alone++
			default:
				later++
				require.Equal(t, start.Add(11*time.Second), c.Start)
			}
		}
		require.Equal(t, 2, later)
		require.Equal(t, under, again, "the second attempts of those in a batch")
		require.Equal(t, loki.MaxBatch, alone, "the first ones of those that waited")
		require.Empty(t, r.events(loki.KindLost))
		r.primary.Reset()
		time.Sleep(15 * time.Second)
		for _, c := range r.primary.Calls(lokitest.OpExtend) {
			require.NotZero(t, c.Batch, "there are batches again")
		}
	})
}

// Batches that were abandoned count for each of their keys, until they return.
func TestBatch_ThatWasAbandonedCountsUntilItReturns(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.acquire(l, 0, 2)
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			if op == lokitest.OpExtend && !c.Repeated {
				return lokitest.Fault{Before: lokitest.Pause{For: loki.DefaultPrimaryTimeout + time.Second, IgnoreCtx: true}}
			}
			return lokitest.Fault{}
		})
		time.Sleep((loki.MaxAbandonedOfKey + 5) * batchExpiry / loki.RenewalFraction)
		require.Empty(t, r.events(loki.KindRenewFailed))
	})
}

// A lease does not wait for a batch when there is too much to do.
func TestBatch_IsNotWaitedForLongerThanATwelfthOfTheExpiry(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		start, l := time.Now(), r.locker(alone, func(c *loki.Config) { c.PrimaryTimeout = time.Minute })
		under := loki.MaxBatches * loki.MaxBatch
		r.acquire(l, 0, 3*under)
		r.primary.faults.Set(lokitest.OpExtend, lokitest.Fault{Before: lokitest.Pause{For: 2 * time.Second}})
		time.Sleep(15 * time.Second)
		when := make(map[string]int)
		for _, c := range r.primary.Calls(lokitest.OpExtend) {
			when[fmt.Sprint(min(c.Batch, 1), " at ", c.Start.Sub(start))]++
		}
		require.Equal(t, map[string]int{"1 at 10s": under, "1 at 12s": under, "0 at 12.5s": under}, when)
	})
}

// strange answers batches in a way of its own.
type strange struct {
	*testStore
	answers func(claims []loki.Claim) ([]loki.Extended, error)
}

func (s strange) ExtendAll(_ context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	return s.answers(claims)
}

func TestBatch_WithAStrangeAnswer(t *testing.T) {
	for name, answers := range map[string]func([]loki.Claim) ([]loki.Extended, error){
		"too few":  func([]loki.Claim) ([]loki.Extended, error) { return nil, nil },
		"too many": func(c []loki.Claim) ([]loki.Extended, error) { return make([]loki.Extended, len(c)+1), nil },
		"an error in each": func(c []loki.Claim) ([]loki.Extended, error) {
			return slices.Repeat([]loki.Extended{{Err: errDown}}, len(c)), nil
		},
		"yes and an error": func(c []loki.Claim) ([]loki.Extended, error) {
			return slices.Repeat([]loki.Extended{{Held: true}}, len(c)), errDown
		},
		"no goroutine": func([]loki.Claim) ([]loki.Extended, error) {
			runtime.Goexit()
			return nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(alone, func(c *loki.Config) { c.Primary = strange{r.primary, answers} })
				r.acquire(l, 0, 2)
				time.Sleep(time.Minute)
				require.Empty(t, r.events(loki.KindLost))
				require.NotEmpty(t, r.primary.Calls(lokitest.OpExtend), "each has gone alone")
				require.NotEmpty(t, r.events(loki.KindRenewed))
			})
		})
	}
}

// A handler around one that cannot extend many at once is asked once, and renews each lease on time nevertheless.
func TestBatch_OfADecoratorThatHasNone(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		asked := 0
		start, l := time.Now(), r.locker(alone, func(c *loki.Config) {
			c.Primary = strange{r.primary, func([]loki.Claim) ([]loki.Extended, error) { asked++; return nil, errors.ErrUnsupported }}
		})
		r.acquire(l, 0, 2)
		time.Sleep(25 * time.Second)
		require.Equal(t, []string{"0 at 10s", "0 at 10s", "0 at 20s", "0 at 20s"}, r.renewals(start))
		require.Equal(t, 1, asked)
		require.Empty(t, r.events(loki.KindRenewFailed))
	})
}

// A batch that fails is a failure of each of its keys, as far as the circuit breaker is concerned.
func TestBatch_IsSeenByTheCircuitBreaker(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.acquire(l, 0, 3)
		r.primary.fail(errDown)
		time.Sleep(10*time.Second + time.Millisecond)
		asked := len(r.primary.Calls(lokitest.OpLock))
		r.requireRan(l)
		require.Len(t, r.primary.Calls(lokitest.OpLock), asked, "three keys have failed")
		r.primaryIsBack()
	})
}
