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
	granted loki.Claim // the last claim it recorded
}

func newStore() *store { return &store{mem: memhandler.New()} }

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
	if g.Held {
		s.mu.Lock()
		s.granted = c
		s.mu.Unlock()
	}
	return g, err
}

// Extend is the memory's.
func (s *store) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	return s.now().Extend(ctx, c)
}

// Release is the memory's.
func (s *store) Release(ctx context.Context, c loki.Claim) error { return s.now().Release(ctx, c) }

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
