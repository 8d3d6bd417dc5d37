package loki

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lokilock/loki/internal/jitter"
)

// A primary that is down must not make every call slow: after a failure it is asked less. These are the pauses between
// two looks at it, jittered by an eighth; each is twice as long as the one before. While one lasts, acquisitions go to
// the secondary at once. Since another instance may see the primary up in that time, BreakerMaxPause is part of the
// bound on the overlap of two closures under [MirrorAsync].
const (
	BreakerMinPause = 100 * time.Millisecond
	BreakerMaxPause = 3 * time.Second
)

const (
	// breakerKeys is how many different keys have to fail, with no answer to any key in between, before the primary
	// is taken to be down for all of them: a cluster may have lost one shard only.
	breakerKeys = 3

	// maxBreakerKeys bounds the memory of keys that fail while others are answered. What comes on top is asked.
	maxBreakerKeys = 1024

	everyKey = "" // no lock has it
)

// breaker steers acquisitions around a primary that is down; renewals and releases try it all the same. It opens for a
// key whose acquisition found the primary unavailable, and for all keys when that happened to several in a row. An
// answer closes it. Callers do not pay for the looks: these are made in the background, with a release of a claim that
// nobody holds, which changes nothing.
//
// There is none (nil) without a secondary: a caller that cannot go elsewhere is better off with an attempt.
type breaker struct {
	primary *store

	mu      sync.Mutex // guards what follows; never held while the primary is asked
	looks   map[string]*breakerLook
	failing map[string]struct{} // keys that failed since the last answer
	last    string              // the latest key that was sent elsewhere: what is looked at for every key
	err     error               // what the primary failed with last
	ended   bool
}

// breakerLook is an open breaker: for one key, or for every key.
type breakerLook struct {
	since time.Time
	pause time.Duration
	timer *time.Timer
}

// refusal is nil, or why an acquisition of key should leave the primary alone.
func (b *breaker) refusal(key string) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.looks[everyKey] == nil && b.looks[key] == nil {
		return nil
	}
	b.last = key
	return Unavailable(fmt.Errorf("not asked, since a moment ago it failed: %w", b.err))
}

// failed is told that an acquisition of key found the primary unavailable. ctx gives the looks its values.
func (b *breaker) failed(ctx context.Context, key string, err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.looks[everyKey] != nil || b.looks[key] != nil {
		return
	}
	if b.failing == nil {
		b.looks, b.failing = make(map[string]*breakerLook), make(map[string]struct{})
	}
	b.failing[key] = struct{}{}
	b.last, b.err = key, handlersOwn(err)
	if len(b.failing) >= breakerKeys {
		b.close()
		key = everyKey
	} else if len(b.looks) >= maxBreakerKeys {
		return
	}
	look := &breakerLook{since: time.Now(), pause: BreakerMinPause}
	b.looks[key] = look
	ctx = context.WithoutCancel(ctx)
	look.timer = time.AfterFunc(jitter.Around(look.pause), func() { b.look(ctx, key, look) })
}

// answered is told that the primary has answered a question about key. ctx gives the event its values.
func (b *breaker) answered(ctx context.Context, key string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.looks) == 0 {
		return
	}
	clear(b.failing)
	look := b.looks[everyKey]
	if look != nil {
		b.close()
	} else if look = b.looks[key]; look != nil {
		look.timer.Stop()
		delete(b.looks, key)
	}
	if look != nil {
		b.primary.events.emit(ctx, Event{Kind: KindRecovered, Handler: primaryName, Key: key, Took: time.Since(look.since)})
	}
}

// close is called with mu held.
func (b *breaker) close() {
	for _, look := range b.looks {
		look.timer.Stop()
	}
	clear(b.looks)
}

// end closes the breaker for good.
func (b *breaker) end() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.close()
}

// look asks the primary whether it is back.
func (b *breaker) look(ctx context.Context, key string, look *breakerLook) {
	b.mu.Lock()
	about := key
	if key == everyKey {
		about = b.last
	}
	b.mu.Unlock()
	a := b.primary.release(ctx, Claim{Key: about, Token: newToken(), Expiry: MinExpiry}, b.primary.timeout)
	if a.err == nil || !IsUnavailable(a.err) {
		b.answered(ctx, key)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.looks[key] != look {
		return // closed in the meantime
	}
	b.err = handlersOwn(a.err)
	look.pause = min(2*look.pause, BreakerMaxPause)
	look.timer = time.AfterFunc(jitter.Around(look.pause), func() { b.look(ctx, key, look) })
}

// handlersOwn is a store's error without the Locker's words around it, which would be said twice.
func handlersOwn(err error) error {
	if wrapped, ok := errors.AsType[*HandlerError](err); ok {
		return wrapped.Err
	}
	return err
}
