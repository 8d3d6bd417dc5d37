// Package localredis is a Redis inside the process, so that examples run on a machine that has none.
//
// It does not keep anything, and is no Redis to run a service on.
package localredis

import (
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// tick is how far a key's end may be off: miniredis lets time pass only when it is told.
const tick = 5 * time.Millisecond

// Server listens on a port of 127.0.0.1 until Stop.
type Server struct {
	*miniredis.Miniredis
	stop    chan struct{}
	stopped sync.WaitGroup
}

// Start starts a server whose keys expire as time goes by.
func Start() (*Server, error) {
	redis, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	s := &Server{Miniredis: redis, stop: make(chan struct{})}
	s.stopped.Go(s.passTime)
	return s, nil
}

// passTime goes on while the server is closed, as for a Redis that is out of reach.
func (s *Server) passTime() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case now := <-ticker.C:
			s.FastForward(now.Sub(last))
			last = now
		case <-s.stop:
			return
		}
	}
}

// Stop ends the server and its clock. It is called once.
func (s *Server) Stop() {
	close(s.stop)
	s.stopped.Wait()
	s.Close()
}
