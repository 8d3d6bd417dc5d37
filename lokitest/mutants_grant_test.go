package lokitest_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// onHeldBy changes what a refused claim is told.
func onHeldBy(change func(m *mutant, c loki.Claim, h *loki.Holder)) func(*mutant) {
	return onAnswer(func(m *mutant, c loki.Claim, g *loki.Grant) {
		if !g.Held {
			change(m, c, &g.HeldBy)
		}
	})
}

var grantMutants = map[string]map[string]func(*mutant){
	"grant-is-lock": {
		"a store of its own": func(m *mutant) { m.lock = memhandler.New().Lock },
		"Lock takes what Grant refuses": func(m *mutant) {
			m.lock = func(ctx context.Context, c loki.Claim) (bool, error) {
				g, err := m.steal(ctx, c)
				return g.Held, err
			}
		},
	},
	"grant-tells-holder": {
		"tells the asker": onHeldBy(func(_ *mutant, c loki.Claim, h *loki.Holder) { h.ID = c.Holder }),
		"tells the token": onHeldBy(func(m *mutant, c loki.Claim, h *loki.Holder) { h.ID, _ = m.holding(context.Background(), c.Key) }),
		"varchar":         onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.ID = ascii(h.ID) }),
		"trims":           onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.ID = strings.TrimSpace(h.ID) }),
		"cuts":            onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.ID = h.ID[:min(len(h.ID), 128)] }),
	},
	"grant-tells-times": {
		"the wrong unit": onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.Until = h.Since.Add(h.Until.Sub(h.Since) / 1000) }),
		"another zone":   onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.Since = h.Since.Add(-time.Hour) }),
	},
	"grant-keeps-since": {
		"since the last grant":   onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.Since = h.Until.Add(-time.Minute) }),
		"until the first expiry": onHeldBy(func(_ *mutant, _ loki.Claim, h *loki.Holder) { h.Until = h.Since.Add(time.Minute) }),
	},
}

// ownFences replaces the store's fences with a counter for each key, starting at 1, that is broken at will.
func ownFences(issue func(last int64, again bool, floor int64) int64, atEnd func(last int64, released bool) int64) func(*mutant) {
	return func(m *mutant) {
		var mu sync.Mutex
		last, holder := make(map[string]int64), make(map[string]string)
		grant, release := m.grant, m.release
		m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
			g, err := grant(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			if g.Held {
				again := holder[c.Key] == c.Token
				if !again && holder[c.Key] != "" && holder[c.Key] != c.Supersedes {
					last[c.Key] = atEnd(last[c.Key], false)
				}
				last[c.Key], holder[c.Key] = issue(last[c.Key], again, c.Fence), c.Token
				g.Fence = last[c.Key]
			}
			return g, err
		}
		m.release = func(ctx context.Context, c loki.Claim) error {
			mu.Lock()
			if holder[c.Key] == c.Token {
				last[c.Key], holder[c.Key] = atEnd(last[c.Key], true), ""
			}
			mu.Unlock()
			return release(ctx, c)
		}
	}
}

// rightFence is how fences are issued, and stays is what a key's end does to them: nothing.
func rightFence(last int64, again bool, floor int64) int64 {
	if again {
		return last
	}
	return max(last+1, floor)
}

func stays(last int64, _ bool) int64 { return last }

// tellsTheFloor where the fence is lower.
func tellsTheFloor(m *mutant) {
	healthy := m.grant
	m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
		floor := c.Fence
		c.Fence = 0
		g, err := healthy(ctx, c)
		if g.Held {
			g.Fence = max(g.Fence, floor)
		}
		return g, err
	}
}

var fenceMutants = map[string]map[string]func(*mutant){
	"fence-always-or-never": {
		"none when granted again": ownFences(func(last int64, again bool, floor int64) int64 {
			if again {
				return 0
			}
			return rightFence(last, again, floor)
		}, stays),
		"begins with none": ownFences(func(last int64, again bool, floor int64) int64 {
			if again {
				return max(last, 1)
			}
			return last
		}, stays),
		"counts down": onAnswer(func(_ *mutant, _ loki.Claim, g *loki.Grant) { g.Fence = -g.Fence }),
	},
	"fence-grows-over-release": {
		"forgotten with the claim": ownFences(rightFence, func(last int64, released bool) int64 {
			if released {
				return 0
			}
			return last
		}),
		"always one": ownFences(func(_ int64, _ bool, floor int64) int64 { return max(1, floor) }, stays),
	},
	"fence-grows-over-expiry": {
		"forgotten with the claim": ownFences(rightFence, func(last int64, released bool) int64 {
			if !released {
				return 0
			}
			return last
		}),
	},
	"fence-has-a-floor": {
		"ignored": onClaim(func(c *loki.Claim) { c.Fence = 0 }),
		"ignored on a key that has none": ownFences(func(last int64, again bool, floor int64) int64 {
			if last == 0 {
				return 1
			}
			return rightFence(last, again, floor)
		}, stays),
	},
	"fence-stays-above-floor": {
		"told, not kept": tellsTheFloor,
		"set to the floor": ownFences(func(last int64, again bool, floor int64) int64 {
			if floor > 0 && !again {
				return floor
			}
			return rightFence(last, again, floor)
		}, stays),
	},
	"fence-rises-with-the-floor": {
		"the first floor counts": ownFences(rightFence, stays),
		"told, not kept":         tellsTheFloor,
	},
	"fence-is-the-same-again": {
		"a new one each time": ownFences(func(last int64, _ bool, floor int64) int64 { return max(last+1, floor) }, stays),
		"counts refusals": func(m *mutant) {
			var mu sync.Mutex
			refusals := make(map[string]int64)
			onAnswer(func(_ *mutant, c loki.Claim, g *loki.Grant) {
				mu.Lock()
				defer mu.Unlock()
				if !g.Held {
					refusals[c.Key]++
					return
				}
				g.Fence += refusals[c.Key]
			})(m)
		},
	},
}

// ownReleased replaces the store's last released token by what told makes of all releases on the key: who asked, and
// whether it held.
func ownReleased(told func(c loki.Claim, releases []string) string, onlyHolder bool) func(*mutant) {
	return func(m *mutant) {
		var mu sync.Mutex
		releases := make(map[string][]string)
		release := m.release
		m.release = func(ctx context.Context, c loki.Claim) error {
			if token, _ := m.holding(ctx, c.Key); token == c.Token || !onlyHolder {
				mu.Lock()
				releases[c.Key] = append(releases[c.Key], c.Token)
				mu.Unlock()
			}
			return release(ctx, c)
		}
		onAnswer(func(_ *mutant, c loki.Claim, g *loki.Grant) {
			mu.Lock()
			defer mu.Unlock()
			g.Released = told(c, releases[c.Key])
		})(m)
	}
}

var releasedMutants = map[string]map[string]func(*mutant){
	"released-is-the-last": {
		"the first": ownReleased(func(_ loki.Claim, releases []string) string {
			return strings.Join(releases[:min(1, len(releases))], "")
		}, true),
		"the asker": ownReleased(func(c loki.Claim, _ []string) string { return c.Token }, true),
		"the holder": onAnswer(func(m *mutant, c loki.Claim, g *loki.Grant) {
			if token, _ := m.holding(context.Background(), c.Key); token != "" {
				g.Released = token
			}
		}),
	},
	"released-only-by-its-holder": {
		"whoever asks": ownReleased(func(_ loki.Claim, releases []string) string {
			return strings.Join(releases[max(0, len(releases)-1):], "")
		}, false),
	},
	"released-is-remembered": {
		"not long enough": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				c.Expiry /= 2
				return healthy(ctx, c)
			}
		},
		"for the expiry that was granted": func(m *mutant) {
			var granted sync.Map // by token
			onClaim(func(c *loki.Claim) { granted.Store(c.Token, c.Expiry) })(m)
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if expiry, ok := granted.Load(c.Token); ok {
					c.Expiry = expiry.(time.Duration)
				}
				return healthy(ctx, c)
			}
		},
	},
}
