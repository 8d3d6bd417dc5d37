package lokitest_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

// hub is a notifier whose every part can be broken.
type hub struct {
	tells func(lokitest.Op, loki.Claim) bool                           // of a release, or a shorter expiry
	to    func([]chan struct{}) []chan struct{}                        // of those who listen to the key, in order
	send  func(context.Context, chan struct{})                         // to one of them
	left  func(all []chan struct{}, who chan struct{}) []chan struct{} // of those who listened, when one's ctx has ended

	mu        sync.Mutex
	listening map[string][]chan struct{}
}

func (h *hub) notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	who := make(chan struct{}, 1)
	h.listening[key] = append(h.listening[key], who)
	context.AfterFunc(ctx, func() {
		time.AfterFunc(time.Millisecond, func() { // late enough for others to have come
			h.mu.Lock()
			defer h.mu.Unlock()
			h.listening[key] = h.left(h.listening[key], who)
		})
	})
	return who, nil
}

func (h *hub) tell(ctx context.Context, op lokitest.Op, c loki.Claim) {
	if !h.tells(op, c) {
		return
	}
	h.mu.Lock()
	all := h.to(h.listening[c.Key])
	h.mu.Unlock()
	for _, who := range all {
		h.send(ctx, who)
	}
}

// ownNews replaces the store's notifier with a hub that is broken at will.
func ownNews(breaks func(*hub)) func(*mutant) {
	return func(m *mutant) {
		h := &hub{
			tells: func(lokitest.Op, loki.Claim) bool { return true },
			to:    slices.Clone[[]chan struct{}],
			send: func(_ context.Context, who chan struct{}) {
				select {
				case who <- struct{}{}:
				default:
				}
			},
			left: func(all []chan struct{}, who chan struct{}) []chan struct{} {
				return slices.DeleteFunc(all, func(other chan struct{}) bool { return other == who })
			},
			listening: make(map[string][]chan struct{}),
		}
		breaks(h)
		m.notify = h.notify
		grant, extend, release := m.grant, m.extend, m.release
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			shorter := m.shortens(ctx, c)
			g, err := grant(ctx, c)
			if shorter && g.Held {
				h.tell(ctx, lokitest.OpLock, c)
			}
			return g, err
		}
		m.extend = func(ctx context.Context, c loki.Claim) (bool, error) {
			shorter := m.shortens(ctx, c)
			held, err := extend(ctx, c)
			if shorter && held {
				h.tell(ctx, lokitest.OpExtend, c)
			}
			return held, err
		}
		m.release = func(ctx context.Context, c loki.Claim) error {
			token, _ := m.holding(ctx, c.Key)
			err := release(ctx, c)
			if err == nil && token == c.Token {
				h.tell(ctx, lokitest.OpRelease, c)
			}
			return err
		}
	}
}

func (m *mutant) shortens(ctx context.Context, c loki.Claim) bool {
	token, h := m.holding(ctx, c.Key)
	return token == c.Token && time.Until(h.Until) > c.Expiry
}

// tells is a notifier that is right but for what it tells of.
func tells(of func(lokitest.Op, loki.Claim) bool) func(*mutant) {
	return ownNews(func(h *hub) { h.tells = of })
}

// tellsTo is a notifier that is right but for whom it tells.
func tellsTo(choose func([]chan struct{}) []chan struct{}) func(*mutant) {
	return ownNews(func(h *hub) { h.to = choose })
}

type notifyFunc = func(context.Context, string) (<-chan struct{}, error)

// onNotify listens in another way.
func onNotify(change func(healthy notifyFunc) notifyFunc) func(*mutant) {
	return func(m *mutant) { m.notify = change(m.notify) }
}

// talkative is healthy: it tells of every release and a lot besides, and closes the channel when nobody can read it any
// more.
func talkative(m *mutant) {
	healthy := m.notify
	m.notify = func(ctx context.Context, key string) (<-chan struct{}, error) {
		inner, err := healthy(ctx, key)
		if err != nil {
			return nil, err
		}
		frees := make(chan struct{})
		go func() {
			defer close(frees)
			chat := time.NewTicker(10 * time.Millisecond)
			defer chat.Stop()
			for {
				select {
				case <-inner:
				case <-chat.C:
				case <-ctx.Done():
					return
				}
				select {
				case frees <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}()
		return frees, nil
	}
}
