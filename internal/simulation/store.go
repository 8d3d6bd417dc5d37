package simulation

import (
	"context"
	"sync"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// store is a server: a store that can lose what it knows, and of which the referee may know who holds.
type store struct {
	mu      sync.Mutex // guards what follows; never held while mem is called
	mem     *memhandler.Handler
	granted loki.Claim      // the last claim it recorded
	found   map[string]bool // for each token that was released: whether the first release found it
}

func newStore() *store { return &store{mem: memhandler.New(), found: make(map[string]bool)} }

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
	s.mu.Lock()
	before := s.granted.Token
	s.mu.Unlock()
	g, err := s.now().Grant(ctx, c)
	if g.Held {
		s.mu.Lock()
		s.granted = c
		if _, released := s.found[before]; !released && before != "" && before == c.Supersedes {
			s.found[before] = true // its release was on its way: whoever replaced it knew that
		}
		s.mu.Unlock()
	}
	return g, err
}

// Extend is the memory's.
func (s *store) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	return s.now().Extend(ctx, c)
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
	return held, err
}

// missed reports whether the first release of a claim found that it was not held.
func (s *store) missed(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, released := s.found[token]
	return released && !held
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
	mem, last := s.mem, s.granted
	s.mu.Unlock()
	last.Mirrored = false      // a replica that missed the write remembers no release of it
	_ = mem.Release(ctx, last) // which may be over: then nothing is lost
}

// holds says which claim the one key of a simulation is held by.
func (s *store) holds(ctx context.Context) (token string, held bool) {
	s.mu.Lock()
	mem, last := s.mem, s.granted
	s.mu.Unlock()
	_, held, err := mem.Inspect(ctx, key)
	return last.Token, held && err == nil // the last one granted is the one that holds, if any does
}
