package postgreshandler

// This file is the notifier: one connection that all waiters of a handler share, and who is told of what it hears.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokilock/loki/postgreshandler/internal/postgreserror"
)

// Notify implements [loki.Notifier], by LISTEN and a message that the statements send. All callers share one connection,
// opened for the first and closed after the last of them. It is none of the pool's, so the pool needs no
// room for it, and is made as those are, unless [WithListenDSN] says otherwise. If it breaks it is restored; whoever listens is then told
// to look, since something may have been missed. If it cannot be restored within three seconds, or the pool has been closed
// meanwhile, the channels are closed.
//
// With a driver that is not pgx, behind a pooler, which lends a connection that listens to others, and with
// [WithoutNotify], the error matches [errors.ErrUnsupported].
func (h *Handler) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	if h.listeners == nil {
		return nil, errors.ErrUnsupported
	}
	var told chan struct{}
	err := h.base.Do(ctx, "notify", key, func() (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		told, err = h.listeners.join(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return told, nil
}

// firstRestorePause is the pause before a connection that broke is tried to be restored; each after it is twice as long.
const firstRestorePause = 50 * time.Millisecond

// listeners is everybody who listens. All keys of the table go over one channel of PostgreSQL, so nothing need be sent
// when a listener comes or goes.
type listeners struct {
	line line

	mu  sync.Mutex // guards what follows, and the ear; never held while anything is sent
	ear *ear       // nil while nobody listens
}

// ear is one connection, or several after each other, from the first listener to the last.
type ear struct {
	told  map[string]map[chan struct{}]struct{}
	count int
	stop  context.CancelFunc

	hears chan struct{} // closed while the server hears for it, else to be waited for
	deaf  chan struct{} // closed when it has been given up
	err   error         // why; set before deaf is closed
}

// join adds a listener and returns when the server hears for it.
func (l *listeners) join(ctx context.Context, key string) (chan struct{}, error) {
	told := make(chan struct{}, 1)
	l.mu.Lock()
	e := l.ear
	if e == nil {
		e = &ear{told: make(map[string]map[chan struct{}]struct{}), hears: make(chan struct{}), deaf: make(chan struct{})}
		l.ear = e
		var life context.Context
		life, e.stop = context.WithCancel(context.WithoutCancel(ctx)) // it outlives this caller if others come
		go l.hear(life, e)
	}
	if e.told[key] == nil {
		e.told[key] = make(map[chan struct{}]struct{})
	}
	e.told[key][told] = struct{}{}
	e.count++
	hears := e.hears
	l.mu.Unlock()

	select {
	case <-hears:
		context.AfterFunc(ctx, func() { l.leave(e, key, told) })
		return told, nil
	case <-e.deaf:
		return nil, e.err
	case <-ctx.Done():
		l.leave(e, key, told)
		return nil, ctx.Err()
	}
}

// leave removes a listener, and after the last one the connection.
func (l *listeners) leave(e *ear, key string, told chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ear != e {
		return // it has been given up
	}
	delete(e.told[key], told)
	if len(e.told[key]) == 0 {
		delete(e.told, key)
	}
	if e.count--; e.count == 0 {
		l.ear = nil
		e.stop()
	}
}

// hear keeps the connection until nobody listens any more, or until it cannot be restored: a server that is away for longer
// is for the Locker to poll, which asks again for a notifier later.
func (l *listeners) hear(ctx context.Context, e *ear) {
	defer e.stop()
	conn, err := l.line.dial(ctx) // if it fails the first caller is told at once
	for restored := false; err == nil; restored = true {
		l.heard(e, restored)
		l.line.follow(ctx, conn, func(key string) { l.tell(e, key) })
		l.broke(e)
		conn, err = l.restore(ctx)
	}
	l.giveUp(e, err)
}

// restore returns another connection for one that broke. An error that is no outage, such as that the pool has been closed,
// will be the same the next time.
func (l *listeners) restore(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.line.patience.restore)
	defer cancel()
	err := ctx.Err()
	for pause := firstRestorePause; sleep(ctx, pause); pause *= 2 {
		var conn *pgx.Conn
		if conn, err = l.line.dial(ctx); err == nil {
			return conn, nil
		}
		if !postgreserror.IsOutage(err) {
			return nil, err
		}
	}
	return nil, errors.Join(err, ctx.Err())
}

// heard lets those in who wait to be heard for. If the connection has been restored everybody is told to look.
func (l *listeners) heard(e *ear, restored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(e.hears)
	for key := range e.told {
		if restored {
			e.tell(key)
		}
	}
}

// broke makes those wait who come until the connection is restored.
func (l *listeners) broke(e *ear) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.hears = make(chan struct{})
}

// giveUp closes the channels of all who listen. The next to come begins anew.
func (l *listeners) giveUp(e *ear, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.err = err
	close(e.deaf)
	if l.ear != e {
		return // everybody has left
	}
	l.ear = nil
	for _, all := range e.told {
		for told := range all {
			close(told)
		}
	}
}

func (l *listeners) tell(e *ear, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.tell(key)
}

// tell wakes those who listen to key. It is called with the listeners' mutex held.
func (e *ear) tell(key string) {
	for told := range e.told[key] {
		select {
		case told <- struct{}{}:
		default: // it has one to read
		}
	}
}

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
