package loki_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// reported are the events that a person sees, as "level kind handler".
func (l *eventLog) reported() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, e := range l.events {
		if e.Level > slog.LevelDebug {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%v %s %s", e.Level, e.Kind, e.Store)))
		}
	}
	return lines
}

func (r *rig) requireReported(want ...string) {
	r.t.Helper()
	synctest.Wait()
	require.Equal(r.t, want, r.log.reported())
}

// try runs a closure that may or may not run.
func (r *rig) try(l *loki.Locker, opts ...loki.Option) error {
	return l.ExecuteWithinLock(r.t.Context(), 30*time.Second, func(context.Context) error { time.Sleep(time.Millisecond); return nil }, opts...)
}

// One line when a store goes down and one when it is back, whatever it is for and however often it is asked.
func TestHealthReportsAnOutageOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		mode  func(*loki.Config)
		store string // that fails
		level slog.Level
		runs  bool // meanwhile
	}{
		{"alone", alone, "primary", slog.LevelError, false},
		{"async, the primary", func(*loki.Config) {}, "primary", slog.LevelWarn, true},
		{"async, the secondary", func(*loki.Config) {}, "secondary", slog.LevelWarn, true},
		{"sync, the primary", inSync, "primary", slog.LevelWarn, true},
		{"sync, the secondary", inSync, "secondary", slog.LevelError, false},
	} {
		for name, fail := range map[string]func(*testStore){
			"refuses": func(s *testStore) { s.fail(errDown) },
			"hangs":   func(s *testStore) { s.hang() },
			"has no memory left": func(s *testStore) { // so that it releases, and grants nothing
				s.fail(loki.Unavailable(errors.New("OOM command not allowed")), lokitest.OpLock)
			},
		} {
			t.Run(tt.name+" "+name, func(t *testing.T) {
				inRig(t, func(t *testing.T, r *rig) {
					l := r.locker(tt.mode)
					store := map[string]*testStore{"primary": r.primary, "secondary": r.secondary}[tt.store]
					require.NoError(t, r.try(l))
					start := time.Now()
					fail(store)
					for range 100 {
						err := r.try(l)
						if tt.runs {
							require.NoError(t, err)
						} else {
							require.ErrorIs(t, err, loki.ErrUnavailable)
						}
						time.Sleep(100 * time.Millisecond)
					}
					down := fmt.Sprint(tt.level, " down ", tt.store)
					r.requireReported(down)
					e := r.events(loki.KindDown)[0]
					require.Equal(t, "job", e.Key)
					var handlerErr *loki.HandlerError
					require.ErrorAs(t, e.Err, &handlerErr)
					require.Equal(t, tt.store, string(handlerErr.Store))

					store.heal()
					lasted := time.Since(start)
					time.Sleep(2 * loki.BreakerMaxPause)
					require.NoError(t, r.try(l))
					r.requireReported(down, "INFO up "+tt.store)
					e = r.events(loki.KindUp)[0]
					require.InDelta(t, lasted, e.Took, float64(2*loki.BreakerMaxPause))
					if !tt.runs || tt.store == "primary" {
						require.InDelta(t, 100, e.Calls, 10)
					}
					require.Positive(t, e.Calls)
				})
			})
		}
	}
}

func TestHealthReportsAnOutageDuringARun(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
					r.primary.fail(errDown)
					time.Sleep(25 * time.Second)
					require.Len(t, r.events(loki.KindDown), 1)
					r.primary.heal()
					time.Sleep(time.Minute)
					require.Len(t, r.events(loki.KindUp), 1, "nobody but the renewals asked for the lock")
					return ctx.Err()
				}))
				require.Len(t, r.log.reported(), 2)
			})
		})
	}
}

func TestHealthReportsManyFailuresSideBySideOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.hang()
		var all sync.WaitGroup
		for i := range 2_000 {
			all.Go(func() {
				_ = l.ExecuteWithinLock(t.Context(), time.Second, mustNotRun(t), loki.WithResource(fmt.Sprint(i)))
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		require.Len(t, r.events(loki.KindDown), 1)
		r.primary.heal()
		time.Sleep(2 * loki.BreakerMaxPause)
		require.NoError(t, r.try(l))
		require.Len(t, r.events(loki.KindDown), 1)
		require.Len(t, r.events(loki.KindUp), 1)
		require.Equal(t, 2_000, r.events(loki.KindUp)[0].Calls)
	})
}

func TestHealthTakesNoLostCallForAnOutage(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				for range 20 {
					r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{Err: errDown})
					_ = r.try(l)
					time.Sleep(time.Second)
					require.NoError(t, r.try(l))
				}
				r.requireReported()
			})
		})
	}
}

// A connection that breaks takes with it all calls that are under way.
func TestHealthTakesCallsThatFailTogetherForOne(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.primary.faults.Set(lokitest.OpLock, lokitest.Fault{Before: lokitest.Pause{For: time.Hour}})
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() { _ = r.try(l, loki.WithResource(fmt.Sprint(i))) })
			time.Sleep(time.Millisecond)
		}
		r.primary.heal()
		all.Wait()
		time.Sleep(time.Minute)
		r.requireReported()
	})
}

func TestHealthDoesNotFlapWithASlowStore(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				calls := 0
				hangs := make(map[string]bool)
				var mu sync.Mutex
				r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
					mu.Lock()
					defer mu.Unlock()
					call := fmt.Sprint(op, c.Token)
					if !c.Repeated {
						calls++
						hangs[call] = calls%3 == 0
					}
					if hangs[call] {
						return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
					}
					return lokitest.Fault{}
				})
				for start := time.Now(); time.Since(start) < 5*time.Minute; time.Sleep(700 * time.Millisecond) {
					_ = r.try(l)
				}
				synctest.Wait()
				require.LessOrEqual(t, len(r.log.reported()), 3, "%v", r.log.reported())
			})
		})
	}
}

// The reports of a store that comes and goes are damped.
func TestHealthReportsAStoreThatComesAndGoesAtMostOnceAMinute(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		for range 60 {
			r.primary.fail(errDown)
			for range 5 {
				_ = r.try(l)
				time.Sleep(time.Second)
			}
			r.primary.heal()
			for range 5 {
				_ = r.try(l)
				time.Sleep(time.Second)
			}
		}
		r.requireReported("ERROR down primary", "INFO up primary", "ERROR down primary")
		time.Sleep(2 * time.Minute)
		r.requireReported("ERROR down primary", "INFO up primary", "ERROR down primary", "INFO up primary")
		require.InDelta(t, 10*time.Minute, r.events(loki.KindUp)[1].Took, float64(20*time.Second), "until it was back, not until that was reported")
	})
}

// A cluster has lost one shard: whatever is answered for other keys says nothing about that.
func TestHealthReportsOneShardOnce(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				r.primary.faults.Decide(func(_ lokitest.Op, c loki.Claim) lokitest.Fault {
					if strings.HasPrefix(c.Key, "job/lost") {
						return lokitest.Fault{Err: errDown}
					}
					return lokitest.Fault{}
				})
				for i := range 200 {
					_ = r.try(l, loki.WithResource(fmt.Sprint("lost", i%50)))
					if i%7 != 0 { // now and then several of the lost shard in a row
						require.NoError(t, r.try(l, loki.WithResource(fmt.Sprint("fine", i))))
					}
					time.Sleep(time.Second)
				}
				require.Len(t, r.events(loki.KindDown), 1)
				require.Empty(t, r.events(loki.KindUp))
				r.primary.heal()
				time.Sleep(2 * loki.BreakerMaxPause) // none of its keys is locked again
				require.Len(t, r.events(loki.KindUp), 1)
				require.Len(t, r.log.reported(), 2)
			})
		})
	}
}

// An answer that was on its way when the store failed does not say that it is back.
func TestHealthIgnoresAnAnswerThatWasSentBeforeTheFailure(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Next(lokitest.OpLock, lokitest.Fault{After: lokitest.Pause{For: 400 * time.Millisecond}})
		var all sync.WaitGroup
		all.Go(func() { _ = r.try(l) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		r.primary.fail(errDown)
		_ = r.try(l)
		time.Sleep(10 * time.Millisecond)
		_ = r.try(l)
		r.requireReported("ERROR down primary")
		all.Wait()
		r.requireReported("ERROR down primary")
	})
}

func TestHealthIgnoresCallersThatDoNotWait(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				slow := lokitest.Fault{Before: lokitest.Pause{For: 80 * time.Millisecond}}
				r.primary.faults.Set(lokitest.OpLock, slow)
				r.secondary.faults.Set(lokitest.OpLock, slow)
				for range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
					require.Error(t, l.ExecuteWithinLock(ctx, time.Minute, mustNotRun(t)))
					cancel()
					time.Sleep(100 * time.Millisecond)
				}
				r.requireReported()
			})
		})
	}
}

// A job that is started, runs once and exits has no time for a second failure.
func TestCloseReportsAFailureThatNothingContradicted(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error {
			r.primary.fail(errDown)
			return nil
		}))
		r.requireReported()
		require.NoError(t, l.Close(t.Context()))
		r.requireReported("ERROR down primary")
	})
}

// A store without memory answers releases: no key is asked twice, and yet nothing is granted.
func TestHealthReportsAStoreThatGrantsNothingToKeysOfOneUse(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"alone": alone, "async": func(*loki.Config) {}} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				r.primary.fail(loki.Unavailable(errors.New("OOM command not allowed")), lokitest.OpLock)
				order := 0
				next := func() error {
					order++
					defer time.Sleep(time.Second)
					return r.try(l, loki.WithResource(fmt.Sprint(order)))
				}
				for range 20 {
					_ = next()
				}
				require.Len(t, r.events(loki.KindDown), 1)
				require.Empty(t, r.events(loki.KindUp))
				r.primary.heal()
				for range 61 {
					require.NoError(t, next())
				}
				require.Len(t, r.events(loki.KindUp), 1)
				require.InDelta(t, 20*time.Second, r.events(loki.KindUp)[0].Took, float64(2*time.Second+loki.BreakerMaxPause))
				require.Len(t, r.log.reported(), 2)
			})
		})
	}
}

func TestHealthReportsAPermanentErrorOncePerCause(t *testing.T) {
	password, table := errors.New("login failed for user 'app'"), errors.New("invalid object name")
	for name, change := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				requireErrors := func(want ...error) {
					errs := slices.DeleteFunc(r.events(loki.KindRefused), func(e loki.Event) bool { return e.Level < slog.LevelError })
					require.Len(t, errs, len(want))
					for i, e := range errs {
						require.Equal(t, loki.Secondary, e.Store)
						require.ErrorIs(t, e.Err, want[i])
					}
				}
				run := func() {
					for range 50 {
						_ = l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { time.Sleep(time.Second); return nil })
					}
				}
				r.secondary.fail(password)
				run()
				requireErrors(password)
				r.secondary.fail(table)
				run()
				requireErrors(password, table)
				r.secondary.heal()
				run()
				r.secondary.fail(password)
				run()
				requireErrors(password, table, password)
				require.Len(t, r.log.reported(), 3)
			})
		})
	}
}

// The text of one and the same cause contains the key, the time, a port.
func TestHealthKnowsACauseInAllItsWords(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.faults.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
			return lokitest.Fault{Err: fmt.Errorf("certificate has expired: current time %s, for %q", time.Now().Format(time.RFC3339), c.Key)}
		})
		for i := range 20 {
			require.Error(t, r.try(l, loki.WithResource(fmt.Sprint("customer ", i))))
			time.Sleep(time.Second)
		}
		r.requireReported("ERROR refused primary")
	})
}

// A login that is refused is refused to the rollback as well.
func TestRefusedLoginIsReportedOnce(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.fail(errors.New("WRONGPASS invalid username-password pair"))
		require.Error(t, r.try(l))
		time.Sleep(time.Minute)
		r.requireReported("ERROR refused primary")
		require.Len(t, r.primary.Calls(lokitest.OpRelease), 1, "a store that refuses both has recorded nothing")
	})
}

func TestRefusedReleaseIsReportedWithItsConsequence(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		r.primary.fail(errors.New("NOPERM no permission to run the 'del' command"), lokitest.OpRelease)
		r.requireRan(l)
		other := r.locker(alone) // the same instance would replace its own record
		for range 20 {
			r.requireBusy(other)
			time.Sleep(time.Second)
		}
		r.requireReported("ERROR refused primary")
		e := r.events(loki.KindRefused)[0]
		require.Equal(t, loki.OpRelease, e.Op)
		require.ErrorContains(t, e.Err, "NOPERM")
		require.ErrorContains(t, e.Err, "stay held until they expire")
	})
}

// The primary does not hold the lock of a running closure any more. Nothing else would say so under MirrorSync.
func TestAForgottenClaimIsReportedOnce(t *testing.T) {
	for name, change := range map[string]func(*loki.Config){"async": func(*loki.Config) {}, "sync": inSync} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				l := r.locker(change)
				var all sync.WaitGroup
				for i := range 10 {
					all.Go(func() {
						err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(ctx context.Context) error {
							time.Sleep(time.Minute)
							return ctx.Err()
						}, loki.WithResource(fmt.Sprint(i)))
						if err != nil {
							t.Error(err)
						}
					})
				}
				time.Sleep(time.Second)
				for _, call := range r.primary.Calls(lokitest.OpLock) {
					require.NoError(t, r.primary.mem.Release(t.Context(), call.Claim))
				}
				time.Sleep(20 * time.Second)
				r.requireReported("WARN forgotten primary")
				require.Len(t, r.events(loki.KindForgotten), 10)
				all.Wait()
			})
		})
	}
}

func TestAnOutageOfBothStoresIsAnError(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker()
		r.secondary.fail(errDown)
		require.NoError(t, l.ExecuteWithinLock(t.Context(), time.Minute, func(context.Context) error { time.Sleep(time.Second); return nil }))
		r.primary.fail(errDown)
		for range 5 {
			require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
			time.Sleep(time.Second)
		}
		r.requireReported("WARN down secondary", "ERROR down primary")
		levels := func(kind loki.EventKind) []slog.Level {
			var levels []slog.Level
			for _, e := range r.events(kind) {
				levels = append(levels, e.Level)
			}
			return slices.Compact(levels)
		}
		require.Equal(t, []slog.Level{slog.LevelDebug}, levels(loki.KindUnavailable))
		require.Equal(t, []slog.Level{slog.LevelDebug}, levels(loki.KindFellBack))
	})
}

// Without another store, callers ask a store that fails. As long as they do, probes would only compete with them.
func TestHealthProbesWhatNoCallerAsks(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		l := r.locker(alone)
		probes := func() (n int) {
			for _, c := range r.primary.Calls(lokitest.OpLock) {
				if strings.Contains(c.Claim.Key, loki.ProbeSuffix) {
					n++
				}
			}
			return n
		}
		r.primary.fail(errDown)
		for range 60 {
			require.ErrorIs(t, r.try(l), loki.ErrUnavailable)
			time.Sleep(time.Second)
		}
		require.Zero(t, probes())
		time.Sleep(4 * loki.BreakerMaxPause)
		require.NotZero(t, probes())
	})
}

// earlyEnd gives up a tenth of its time before its deadline, to tell why, as sqlhandler does where it waits for a connection or a place.
type earlyEnd struct {
	*testStore
	takes time.Duration
	early bool
}

func (h earlyEnd) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	deadline, _ := ctx.Deadline()
	until := deadline
	if h.early {
		until = deadline.Add(-min(time.Until(deadline)/10, 50*time.Millisecond))
	}
	if time.Until(until) < h.takes {
		time.Sleep(time.Until(until))
		return loki.Grant{}, loki.NotSent(errors.New("the pool had no connection free in time"))
	}
	time.Sleep(h.takes)
	return h.testStore.Grant(ctx, c)
}

func TestHealth_ShortExpiryIsNoOutageHoweverEarlyTheHandlerReturns(t *testing.T) {
	for _, early := range []bool{false, true} {
		inRig(t, func(t *testing.T, r *rig) {
			l := r.locker(func(c *loki.Config) { c.Primary = earlyEnd{r.primary, 60 * time.Millisecond, early} })
			for range 2 { // 50 ms are too little for the primary, and the secondary decides
				require.NoError(t, l.ExecuteWithinLock(t.Context(), 150*time.Millisecond, func(context.Context) error { return nil }))
			}
			require.Empty(t, r.events(loki.KindDown), "early %v", early)
			out := r.requireRan(l) // with an expiry of 30 s
			require.Equal(t, loki.Primary, out.Store, "early %v", early)
		})
	}
}
