package simulation

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// store is a server: a store that can lose what it knows, and of which the referee may know who holds.
type store struct {
	start time.Time // of the story

	mu      sync.Mutex // guards what follows; never held while mem is called
	mem     *memhandler.Handler
	granted map[string]loki.Claim // for each key, the last claim it recorded
	last    loki.Claim            // of all of them
	found   map[string]bool       // for each token that was released: whether the first release found it
	records map[string][]record   // for each token, what became of its record
}

// record is until when a store keeps a claim, as it was from a moment on.
type record struct {
	at, until time.Duration
	refused   bool // not recorded: another token holds the key
}

func newStore(start time.Time) *store {
	return &store{start: start, mem: memhandler.New(), granted: make(map[string]loki.Claim), found: make(map[string]bool), records: make(map[string][]record)}
}

func (s *store) now() *memhandler.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mem
}

// Lock is Grant told in one word.
func (s *store) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := s.Grant(ctx, c)
	return g.Held, err
}

// Grant is the memory's.
func (s *store) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	g, err := s.now().Grant(ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.granted[c.Key].Token
	switch {
	case err != nil:
	case g.Held:
		s.granted[c.Key], s.last = c, c
		if _, released := s.found[before]; !released && before != "" && before == c.Supersedes {
			s.found[before] = true // its release was on its way: whoever replaced it knew that
		}
		s.keeps(c, c.Expiry)
	default:
		s.records[c.Token] = append(s.records[c.Token], record{at: time.Since(s.start), refused: true})
	}
	return g, err
}

// keeps is called with mu held.
func (s *store) keeps(c loki.Claim, d time.Duration) {
	now := time.Since(s.start)
	s.records[c.Token] = append(s.records[c.Token], record{at: now, until: now + d})
}

// Extend is the memory's.
func (s *store) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	held, err := s.now().Extend(ctx, c)
	if held && err == nil {
		s.mu.Lock()
		s.keeps(c, c.Expiry)
		s.mu.Unlock()
	}
	return held, err
}

// Release is ReleaseHeld for those who need not know.
func (s *store) Release(ctx context.Context, c loki.Claim) error {
	_, err := s.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld is the memory's.
func (s *store) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	held, err := s.now().ReleaseHeld(ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.found[c.Token]; err == nil && !again {
		s.found[c.Token] = held
	}
	if held && err == nil {
		s.keeps(c, 0)
	}
	return held, err
}

// Inspect is the memory's.
func (s *store) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	return s.now().Inspect(ctx, key)
}

// missed reports whether the first release of a claim found that it was not held.
func (s *store) missed(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, released := s.found[token]
	return released && !held
}

// history is what became of the record of a claim.
func (s *store) history(token string) []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records[token])
}

// forget empties it.
func (s *store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem = memhandler.New()
}

// lose has it forget the claim that it granted last.
func (s *store) lose(ctx context.Context) {
	s.mu.Lock()
	mem, last := s.mem, s.last
	s.mu.Unlock()
	last.Mirrored = false      // a replica that missed the write remembers no release of it
	_ = mem.Release(ctx, last) // which may be over: then nothing is lost
}

// holds says which claim a key is held by, empty if nobody holds it.
func (s *store) holds(ctx context.Context, key string) (token string) {
	s.mu.Lock()
	mem, last := s.mem, s.granted[key]
	s.mu.Unlock()
	if _, held, err := mem.Inspect(ctx, key); err != nil || !held {
		return ""
	}
	return last.Token // the last one granted is the one that holds, if any does
}

// locks are the keys that are held, without those of occurrences.
func (s *store) locks() []string {
	return slices.DeleteFunc(s.now().HeldKeys(), isOccurrence)
}

// isOccurrence reports whether a key is that of an occurrence's record.
func isOccurrence(key string) bool { return strings.Contains(key, "@") }
