package redlockhandler

import (
	"context"
	"sync"
	"time"

	"github.com/lokilock/loki/internal/redisstore"
	"github.com/lokilock/loki/internal/retry"
)

const (
	// listenTimeout is how long a majority may take to listen: each server is connected to anew for it.
	listenTimeout = time.Second

	// relistenPause is the pause before a server that could not be listened to is tried again.
	relistenPause = time.Second
)

// Notify implements [loki.Notifier]: it listens to every server, and passes on each message of any of them. A release
// arrives once for each server that had the claim, so that a waiter who asks too early, when only some have released it, is
// woken again.
//
// It returns when a majority listens: that has a server in common with any majority that a claim can have. A server that
// cannot be listened to yet is tried again, and when it can be a value is sent, to be safe. With clients of which too few
// can subscribe the error matches [errors.ErrUnsupported]. When too few still can, because their clients were closed, the
// channel is closed.
func (h *Handler) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := h.check(ctx, redisstore.CheckKey(key)); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(ctx)
	r := h.newRound(listenTimeout)
	e := &ears{told: make(chan struct{}, 1), able: len(h.servers), majority: len(h.servers)/2 + 1}
	for i, s := range h.servers {
		go s.listen(life, key, e, func(v Vote) { r.vote(i, v) })
	}
	b, d, err := r.count(ctx, func(b *ballot) decision { return b.agreed(VerdictGranted) })
	if err == nil && d == won {
		context.AfterFunc(ctx, stop)
		select {
		case <-e.told: // that of a server that has joined already
		default:
		}
		return e.told, nil
	}
	stop()
	if err == nil {
		err = b.failure("notify", key, d)
	}
	return nil, err
}

// listen passes on what the server tells, until ctx ends or the server can be listened to no longer. It votes once.
func (s *server) listen(ctx context.Context, key string, e *ears, vote func(Vote)) {
	for first := true; ; first = false {
		told, err := s.store.Notify(ctx, key)
		v := Vote{Verdict: VerdictGranted}
		if err != nil {
			v = failure(err)
		}
		if err == nil {
			e.tell()
		}
		if first {
			vote(v)
		}
		if v.Verdict != VerdictUnreachable {
			if err == nil {
				e.hear(ctx, told)
			}
			e.lose(ctx)
			return
		}
		if !retry.Sleep(ctx, relistenPause) {
			return
		}
	}
}

// ears is one who listens to a quorum.
type ears struct {
	told     chan struct{}
	majority int

	mu   sync.Mutex // guards able, and told from being closed while something is told
	able int        // servers that are, or may yet be, listened to
}

// hear passes on what one server tells. It returns when ctx ends or the server tells no more.
func (e *ears) hear(ctx context.Context, told <-chan struct{}) {
	for {
		select {
		case _, open := <-told:
			if !open {
				return
			}
			e.tell()
		case <-ctx.Done():
			return
		}
	}
}

// tell merges what has not been read yet.
func (e *ears) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.able < e.majority {
		return
	}
	select {
	case e.told <- struct{}{}:
	default: // there is one to read
	}
}

// lose counts a server out, unless ctx has ended. With one less a release may have been missed.
func (e *ears) lose(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	e.tell()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.able--; e.able == e.majority-1 {
		close(e.told)
	}
}
