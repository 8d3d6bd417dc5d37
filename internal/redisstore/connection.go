package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// operation is what a request is for. Each has connections of its own.
type operation int

const (
	acquiring operation = iota // and looking
	renewing
	releasing
)

// how says how a request is sent.
type how struct {
	op       operation
	repeated bool // over a new connection, see [loki.Claim.Repeated]
	bounded  bool // it returns when ctx ends, see [loki.Claim.Bounded]
	once     bool // go-redis must not repeat it
	confirm  bool // replicas have to acknowledge it
}

// evaluator is the [Client] by which one request for one key is sent. It is for one goroutine.
type evaluator struct {
	how
	store *Store

	wait   *redis.IntCmd // the reply to WAIT, if one was sent
	unsure bool          // the request may have been sent, and carried out, before
}

// run sends a script, unless ctx has ended: not every client looks before it sends.
func (e *evaluator) run(ctx context.Context, sc script, key string, args ...any) *redis.Cmd {
	if err := ctx.Err(); err != nil {
		return failed(ctx, err)
	}
	if e.repeated {
		var cancel context.CancelFunc
		ctx, cancel = e.store.unlessPlain(ctx)
		defer cancel()
	}
	cmd := sc.run(ctx, e, e.store.naming.keys(key), args...)
	if err := cmd.Err(); err != nil {
		if context.Cause(ctx) == errNoTLS { //nolint:errorlint // the very one
			return failed(ctx, errors.New(noTLS(e.store.server())))
		}
		e.store.lookAgain(ctx, err)
		cmd = failed(ctx, e.store.starved(ctx, key, err))
	}
	return cmd
}

// EvalSha implements [Client].
func (e *evaluator) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return e.do(ctx, "evalsha", sha, keys, args)
}

// Eval implements [Client].
func (e *evaluator) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return e.do(ctx, "eval", text, keys, args)
}

// do sends a command, over the caller's client or, if it is repeated, a new connection. If the client's connections turn
// out to be broken it does both, one after the other: go-redis itself tries some others of its pool, which are usually
// broken as well.
func (e *evaluator) do(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	node, over, err := e.store.nodeOf(ctx, keys[0], e.confirm)
	switch {
	case err != nil && e.confirm:
		return failed(ctx, err)
	case over == nil:
		e.unsure = true
		return e.store.evaluate(ctx, name, script, keys, args)
	case e.bounded && e.store.bounded != nil:
		over = e.store.bounded()
	}
	words := []any{name, script, len(keys)}
	for _, key := range keys {
		words = append(words, key)
	}
	words = append(words, args...)
	if node == nil || !e.repeated {
		e.unsure = e.unsure || e.repeated
		cmd := e.send(ctx, node, over, words)
		if node == nil || ctx.Err() != nil || !broken(cmd.Err()) {
			return cmd
		}
	} else if err := closed(ctx, node); err != nil {
		return failed(ctx, err)
	}
	e.unsure = true
	return e.send(ctx, node, nil, words)
}

// send sends a command over a client, or over a new connection to the node if that is nil, and follows redirections where
// no client does.
func (e *evaluator) send(ctx context.Context, node *redis.Client, over pool, words []any) *redis.Cmd {
	fresh := over == nil
	var ack ReplicaAck
	if e.confirm {
		ack = e.store.ack
	}
	asking := false
	for redirections := maxRedirections; ; redirections-- {
		send := sendFresh(node, ack)
		if !fresh {
			send = sendOver(over, ack)
		}
		m := &message{Cmd: redis.NewCmd(ctx, words...), once: e.once, asking: asking}
		if err := e.store.batches.do(ctx, queueID{node, e.op, fresh, e.bounded, e.confirm}, m, send); err != nil {
			return failed(ctx, err)
		}
		e.wait = m.wait
		c, ok := e.store.client.(cluster)
		if !ok || !fresh && !e.confirm || redirections == 0 {
			return m.Cmd
		}
		var address string
		var moved bool
		if address, moved = redis.IsMovedError(m.Err()); moved {
			asking = false
		} else if address, asking = redis.IsAskError(m.Err()); !asking {
			return m.Cmd
		}
		to := find(ctx, c, address)
		if to == nil {
			return m.Cmd
		}
		node = to
		if !fresh {
			over = to
		}
	}
}

// Repeats reports whether a request with [loki.Claim.Repeated] goes over a new connection: whether it is known where the
// client's connections go.
func (s *Store) Repeats() bool {
	switch s.client.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		return true
	}
	return false
}

// Bounds reports whether requests with [loki.Claim.Bounded] return when their context ends.
func (s *Store) Bounds() bool { return s.bounded != nil }

// boundedClient returns what makes, once, a client that shares the connections of another one and heeds the deadline of a
// context while it waits for an answer: go-redis by default heeds its ReadTimeout alone. It is nil for a client that
// cannot be had so, and where replicas have to acknowledge: that takes its time. A hook that the owner adds later is not the
// other client's.
func boundedClient(client Client, ack ReplicaAck) func() *redis.Client {
	c, ok := client.(*redis.Client)
	if !ok || ack.Replicas > 0 {
		return nil
	}
	return sync.OnceValue(func() *redis.Client {
		o := c.Options()
		b := c.WithTimeout(max(o.ReadTimeout, 0)) // less than zero: without deadlines on its connections
		b.Options().WriteTimeout = max(o.WriteTimeout, 0)
		b.Options().ContextTimeoutEnabled = true
		return b
	})
}

// maxRedirections is how many MOVED and ASK replies are followed for one request, as go-redis does by default.
const maxRedirections = 3

// evaluate sends a command over a client of which nothing is known but that it can evaluate: a wrapper, or a mock.
func (s *Store) evaluate(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	if _, ok := s.client.(pooled); ok { // its error is to come before the caller, whose patience ends with ctx, has gone
		if deadline, ends := ctx.Deadline(); ends {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, 50*time.Millisecond)))
			defer cancel()
		}
	}
	if name == "eval" {
		return s.client.Eval(ctx, script, keys, args...)
	}
	return s.client.EvalSha(ctx, script, keys, args...)
}

// nodeOf returns the client of the server that has the key, if a new connection to that can be made, and the client to
// send over. That is the server's own if it has to be this very server, as for WAIT; else go-redis follows redirections.
// Both are nil for a client of which nothing is known, and with an error.
func (s *Store) nodeOf(ctx context.Context, key string, itself bool) (node *redis.Client, over pool, err error) {
	switch c := s.client.(type) {
	case *redis.Client:
		return c, c, nil
	case *redis.Ring:
		node, err = c.GetShardClientForKey(key)
		over = c
	case *redis.ClusterClient:
		node, err = c.MasterForKey(ctx, key)
		over = c
	case cluster:
		if !itself {
			return nil, nil, nil
		}
		node, err = c.MasterForKey(ctx, key)
	case server:
		if !itself {
			return nil, nil, nil
		}
		return nil, c, nil
	default:
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if itself {
		over = node
	}
	return node, over, nil
}

// pooled is a client that tells of its pool.
type pooled interface {
	PoolStats() *redis.PoolStats
	Options() *redis.Options
}

// starved adds the state of the client's pool to an error if it had no connection to give.
func (s *Store) starved(ctx context.Context, key string, err error) error {
	timedOut := errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
	if !timedOut && !errors.Is(err, context.DeadlineExceeded) && !redis.IsMaxClientsError(err) {
		return err
	}
	client, ok := s.client.(pooled)
	if !ok {
		node, _, _ := s.nodeOf(ctx, s.naming.keys(key)[0], false)
		if node == nil {
			return err
		}
		client = node
	}
	stats, size := client.PoolStats(), client.Options().PoolSize
	if !timedOut && (stats.IdleConns > 0 || int(stats.TotalConns) < size) {
		return err
	}
	return loki.Unavailable(fmt.Errorf("the pool of the client had no connection free for %q: %d of its PoolSize of %d are open, %d idle: raise PoolSize, or give the locks a client of their own: %w",
		key, stats.TotalConns, size, stats.IdleConns, err))
}

func failed(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}
