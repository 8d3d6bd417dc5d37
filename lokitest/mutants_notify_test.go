package lokitest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

var notifyMutants = map[string]map[string]func(*mutant){
	"notify-tells-release": {
		"tells of shorter expiries alone": tells(func(op lokitest.Op, _ loki.Claim) bool { return op != lokitest.OpRelease }),
		"tells once": func(m *mutant) {
			var told sync.Map
			tells(func(_ lokitest.Op, c loki.Claim) bool {
				_, twice := told.LoadOrStore(c.Key, true)
				return !twice
			})(m)
		},
		"knows only keys that are held": func(m *mutant) {
			m.notify = func(ctx context.Context, key string) (<-chan struct{}, error) {
				if token, _ := m.holding(ctx, key); token == "" && ctx.Err() == nil {
					return make(chan struct{}), nil
				}
				return m.store.Notify(ctx, key)
			}
		},
		"returns no channel": onNotify(func(healthy notifyFunc) notifyFunc {
			return func(ctx context.Context, key string) (<-chan struct{}, error) {
				_, err := healthy(ctx, key)
				return nil, err
			}
		}),
		"is an error": onNotify(func(notifyFunc) notifyFunc {
			return func(context.Context, string) (<-chan struct{}, error) { return nil, errors.New("ERR unknown command") }
		}),
		"returns when it has something to tell": onNotify(func(healthy notifyFunc) notifyFunc {
			return func(ctx context.Context, key string) (<-chan struct{}, error) {
				frees, err := healthy(ctx, key)
				if err == nil {
					select {
					case <-frees:
					case <-ctx.Done():
					}
				}
				return frees, err
			}
		}),
		"closes the channel": onNotify(func(notifyFunc) notifyFunc {
			return func(ctx context.Context, _ string) (<-chan struct{}, error) {
				frees := make(chan struct{})
				close(frees)
				return frees, ctx.Err()
			}
		}),
	},
	"notify-tells-everybody": {
		"the first": tellsTo(func(all []chan struct{}) []chan struct{} { return all[:min(1, len(all))] }),
		"the last":  tellsTo(func(all []chan struct{}) []chan struct{} { return all[max(0, len(all)-1):] }),
		"ends with the first who leaves": ownNews(func(h *hub) {
			h.left = func([]chan struct{}, chan struct{}) []chan struct{} { return nil }
		}),
		"shares one channel": func(m *mutant) {
			var shared sync.Map
			onNotify(func(healthy notifyFunc) notifyFunc {
				return func(ctx context.Context, key string) (<-chan struct{}, error) {
					frees, err := healthy(ctx, key)
					if err != nil {
						return nil, err
					}
					first, _ := shared.LoadOrStore(key, frees)
					return first.(<-chan struct{}), nil
				}
			})(m)
		},
	},
	"notify-tells-every-key": {
		"the first": func(m *mutant) {
			var once atomic.Bool
			onNotify(func(healthy notifyFunc) notifyFunc {
				return func(ctx context.Context, key string) (<-chan struct{}, error) {
					if once.CompareAndSwap(false, true) {
						return healthy(ctx, key)
					}
					return make(chan struct{}), ctx.Err()
				}
			})(m)
		},
		"the last": func(m *mutant) {
			var last atomic.Value
			tells(func(_ lokitest.Op, c loki.Claim) bool { return last.Load() == c.Key })(m)
			onNotify(func(healthy notifyFunc) notifyFunc {
				return func(ctx context.Context, key string) (<-chan struct{}, error) {
					last.Store(key)
					return healthy(ctx, key)
				}
			})(m)
		},
	},
	"notify-tells-shorter-lock": {
		"not of Lock": tells(func(op lokitest.Op, _ loki.Claim) bool { return op != lokitest.OpLock }),
	},
	"notify-tells-shorter-extend": {
		"not of Extend": tells(func(op lokitest.Op, _ loki.Claim) bool { return op != lokitest.OpExtend }),
	},
	"notify-quiet-release": {
		"releases nothing": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if c.Quiet {
					return nil
				}
				return healthy(ctx, c)
			}
		},
		"silences the key": func(m *mutant) {
			var silent sync.Map
			tells(func(_ lokitest.Op, c loki.Claim) bool {
				if c.Quiet {
					silent.Store(c.Key, true)
				}
				_, ok := silent.Load(c.Key)
				return !ok
			})(m)
		},
	},
	"notify-leaves-no-gap": {
		"listens a little later": onNotify(func(healthy notifyFunc) notifyFunc {
			return func(ctx context.Context, key string) (<-chan struct{}, error) {
				frees := make(chan struct{}, 1)
				time.AfterFunc(time.Millisecond, func() {
					late, err := healthy(ctx, key)
					for err == nil {
						select {
						case v := <-late:
							select {
							case frees <- v:
							default:
							}
						case <-ctx.Done():
							return
						}
					}
				})
				return frees, ctx.Err()
			}
		}),
		"the end of the one before ends the next": ownNews(func(h *hub) {
			h.left = func([]chan struct{}, chan struct{}) []chan struct{} { return nil }
		}),
	},
	"notify-waits-for-no-reader": {
		"waits until it is read": ownNews(func(h *hub) {
			h.send = func(ctx context.Context, who chan struct{}) {
				select {
				case who <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}),
		"forgets who does not read": func(m *mutant) {
			var forgotten sync.Map
			ownNews(func(h *hub) {
				healthy := h.send
				h.send = func(ctx context.Context, who chan struct{}) {
					if len(who) > 0 {
						forgotten.Store(who, true)
					}
					if _, ok := forgotten.Load(who); !ok {
						healthy(ctx, who)
					}
				}
			})(m)
		},
	},
	"notify-ends-with-its-context": {
		"goes on": onNotify(func(healthy notifyFunc) notifyFunc {
			return func(ctx context.Context, key string) (<-chan struct{}, error) {
				return healthy(context.WithoutCancel(ctx), key)
			}
		}),
		"has 64 places, each for good": func(m *mutant) {
			var taken atomic.Int32
			onNotify(func(healthy notifyFunc) notifyFunc {
				return func(ctx context.Context, key string) (<-chan struct{}, error) {
					if taken.Add(1) > 64 {
						return nil, errors.New("too many subscriptions")
					}
					return healthy(ctx, key)
				}
			})(m)
		},
	},
	"notify-with-ended-context": {
		"is not looked at": onNotify(func(healthy notifyFunc) notifyFunc {
			return func(ctx context.Context, key string) (<-chan struct{}, error) {
				return healthy(context.WithoutCancel(ctx), key)
			}
		}),
	},
}
