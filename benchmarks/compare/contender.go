package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lokilock/loki/benchmarks/internal/rig"
)

// contender is one way to lock: a library, or plain commands. Each has a client of its own, with that client's defaults, and
// is used as its own documentation shows.
type contender interface {
	// try acquires key without waiting, runs fn unless that is nil, and releases. It returns errBusy if key is held.
	try(ctx context.Context, key string, fn func()) error

	// wait is try, but for a caller that waits until key is free.
	wait(ctx context.Context, key string, fn func()) error

	close() error
}

var errBusy = errors.New("held elsewhere")

// The names of the contenders, in the order of the table.
const (
	rawName         = "raw"
	rawAutoName     = "rawauto"
	floorName       = "floor"
	redsyncName     = "redsync"
	redislockName   = "redislock"
	rueidislockName = "rueidislock"
	lokiName        = "loki"
)

var names = []string{rawName, rawAutoName, floorName, redsyncName, redislockName, rueidislockName, lokiName}

// waiting are the names of those that can wait.
var waiting = []string{rawName, rawAutoName, redsyncName, redislockName, rueidislockName, lokiName}

// opener makes a contender on the server at addr, whose locks last for expiry after a crash.
type opener func(addr string, expiry time.Duration) (contender, error)

var openers = map[string]opener{
	rawName:         openRaw,
	rawAutoName:     openRawAuto,
	floorName:       openFloor,
	redsyncName:     openRedsync,
	redislockName:   openRedislock,
	rueidislockName: openRueidislock,
	lokiName:        openLoki,
}

const (
	// expiry is the same for all. Each of them has another default, between 5 s and none.
	expiry = time.Minute

	// patience is how long each of them waits for one answer of the server. Each has another default, between 20 ms and 3 s:
	// a stall of the machine would end some of them with an error, and others not.
	patience = 10 * time.Second

	// holdExpiry is that of a lock which is held while others find it busy: raw, redsync and redislock do not renew.
	holdExpiry = 10 * time.Minute

	// oneKey is the lock where there is only one. It is Loki's service key, so that Loki needs no resource for it.
	oneKey = "bench"
)

// dial returns a client of go-redis with its defaults, but for patience.
func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience, WriteTimeout: patience})
}

// dialHeedful returns such a client that heeds the deadline of a context, as docs/redis.md advises.
func dialHeedful(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience, WriteTimeout: patience, ContextTimeoutEnabled: true})
}

// open makes the contender of that name and closes it with tb. Its connections are open and its scripts loaded: that is paid
// once in the life of a service.
func open(tb *rig.Rig, name, addr string, expiry time.Duration) (contender, error) {
	c, err := openers[name](addr, expiry)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	tb.Cleanup(func() { _ = c.close() })
	const callers = 64
	var all errgroup.Group
	for i := range callers {
		all.Go(func() error {
			if err := c.try(context.Background(), fmt.Sprint("warm-", name, "-", i), nil); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	return c, all.Wait()
}

// keyOf returns a key that no other contender uses. Loki's is its service key, as oneKey is.
func keyOf(name string) string {
	if name == lokiName {
		return oneKey
	}
	return oneKey + "-" + name
}

// hold has c hold key. release returns when c has released it, with the moment at which it began to.
func hold(c contender, key string) (release func() (time.Time, error), err error) {
	held, let, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var began time.Time
	go func() {
		done <- c.try(context.Background(), key, func() {
			close(held)
			<-let
			began = time.Now()
		})
	}()
	select {
	case <-held:
		return func() (time.Time, error) {
			close(let)
			err := <-done
			return began, err
		}, nil
	case err := <-done:
		return nil, fmt.Errorf("to hold %q: %w", key, err)
	}
}
