package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki/internal/retry"
)

// The orders that a worker takes on its standard input, each followed by the name of a store.
const (
	orderHold = "hold"
	orderFree = "free"
)

// holdPause is how long a connection that was not to be had is waited for.
const holdPause = 10 * time.Millisecond

// takeOrders returns when there are no more.
func (w *worker) takeOrders(ctx context.Context, in io.Reader) {
	for orders := bufio.NewScanner(in); orders.Scan(); {
		verb, store, _ := strings.Cut(orders.Text(), " ")
		p := w.pools[store]
		if p == nil {
			continue // its client has no pool of a fixed size
		}
		switch verb {
		case orderHold:
			p.hold(ctx)
		case orderFree:
			p.free()
		}
	}
}

// pool is the pool of a client, which the worker's application uses too: Loki has none of its own.
type pool struct {
	client  *redis.Client
	release context.CancelFunc // nil if nothing has been held
}

// hold takes every connection, as soon as it is to be had, until free is called or ctx ends.
func (p *pool) hold(ctx context.Context) {
	p.free()
	ctx, p.release = context.WithCancel(ctx)
	for range p.client.Options().PoolSize {
		go func() {
			for ctx.Err() == nil {
				// A transaction has a connection of its own until it is over.
				_ = p.client.Watch(ctx, func(tx *redis.Tx) error {
					if err := tx.Ping(ctx).Err(); err != nil {
						return err
					}
					<-ctx.Done()
					return nil
				})
				retry.Sleep(ctx, holdPause)
			}
		}()
	}
}

// free returns at once. A connection on which nothing is answered is not back before the client's read timeout.
func (p *pool) free() {
	if p.release != nil {
		p.release()
	}
}
