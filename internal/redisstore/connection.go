package redisstore

import (
	"context"
	"errors"
	"fmt"
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
	once     bool // go-redis must not repeat it
	confirm  bool // replicas have to acknowledge it
}

// request is one script for one claim, and how it is sent. It is for one goroutine, and one allocation but for what go-redis
// and the keys need.
type request struct {
	how
	store        *Store
	claim        loki.Claim
	expiry, life int64 // of the claim and of its companion, in ms
	words        []any // the command: EVALSHA or EVAL, the script, how many keys, the keys, and the arguments that follow
	keys         int   // how many keys in Redis it has

	unsure  bool // the request may have been sent, and carried out, before
	message message
	room    [maxWords]any
}

// maxWords is how many words the longest command has: that of grant.lua.
const maxWords = 12

// request returns a request whose arguments are to be appended to its words. Those that are the claim's are pointers into
// the request, which go-redis takes for what they point at: they cost nothing, and a hook that writes commands down, as for
// tracing, shows the keys and no owner token.
func (s *Store) request(op operation, c loki.Claim) *request {
	r := &request{how: how{op: op, repeated: c.Repeated}, store: s, claim: c, keys: 1}
	r.expiry = milliseconds(max(c.Expiry, 0))
	r.life = r.expiry + milliseconds(s.fenceTTL)
	lock, companion := s.naming.both(c.Key)
	r.words = append(r.room[:0], nil, nil, 1, lock)
	if companion != "" {
		r.keys = 2
		r.words[2] = 2
		r.words = append(r.words, companion)
	}
	return r
}

// run sends the request, unless ctx has ended: not every client looks before it sends. The digest goes, and the text only if
// the server does not know it: a server forgets its scripts when it restarts, on SCRIPT FLUSH, and a promoted replica may
// never have had them.
func (r *request) run(ctx context.Context, sc script) *redis.Cmd {
	if err := ctx.Err(); err != nil {
		return failed(ctx, err)
	}
	if r.repeated {
		var cancel context.CancelFunc
		ctx, cancel = r.store.unlessPlain(ctx)
		defer cancel()
	}
	r.words[0], r.words[1] = "evalsha", sc.digest
	cmd := r.do(ctx)
	if err := cmd.Err(); err == nil {
		return cmd
	} else if redis.HasErrorPrefix(err, "NOSCRIPT") {
		r.words[0], r.words[1] = "eval", sc.text
		cmd = r.do(ctx)
	}
	if err := cmd.Err(); err != nil {
		if context.Cause(ctx) == errNoTLS { //nolint:errorlint // the very one
			return failed(ctx, errors.New(noTLS(r.store.server())))
		}
		r.store.lookAgain(ctx, err)
		cmd = failed(ctx, r.store.starved(ctx, r.claim.Key, err))
	}
	return cmd
}

// do sends the command, over the caller's client or, if it is repeated, a new connection. If the client's connections turn
// out to be broken it does both, one after the other: go-redis itself tries some others of its pool, which are usually
// broken as well.
func (r *request) do(ctx context.Context) *redis.Cmd {
	node, known, err := r.store.nodeOf(ctx, r.lock(), r.confirm)
	switch {
	case err != nil && r.confirm:
		return failed(ctx, err)
	case !known:
		r.unsure = true
		return r.evaluate(ctx)
	}
	if node == nil || !r.repeated {
		r.unsure = r.unsure || r.repeated
		cmd := r.send(ctx, node, false)
		if err := cmd.Err(); err == nil || node == nil || ctx.Err() != nil || !broken(err) {
			return cmd
		}
	} else if err := closed(ctx, node); err != nil {
		return failed(ctx, err)
	}
	r.unsure = true
	return r.send(ctx, node, true)
}

// lock is the lock's key in Redis.
func (r *request) lock() string { return r.words[3].(string) }

// send sends the command over the client, or over a new connection to the node, and follows redirections where no client
// does.
func (r *request) send(ctx context.Context, node *redis.Client, fresh bool) *redis.Cmd {
	asking := false
	for redirections := maxRedirections; ; redirections-- {
		m := &r.message // nobody has it any more, if it was sent before
		*m = message{Cmd: redis.NewCmd(ctx, r.words...), once: r.once, asking: asking}
		if err := r.store.batches.do(ctx, queueID{node, r.op, fresh, r.confirm}, m); err != nil {
			return failed(ctx, err)
		}
		c, ok := r.store.client.(cluster)
		if !ok || !fresh && !r.confirm || redirections == 0 {
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
	}
}

// carry sends messages of a queue.
func (s *Store) carry(ctx context.Context, id queueID, messages []*message) {
	var ack ReplicaAck
	if id.confirm {
		ack = s.ack
	}
	switch {
	case id.fresh:
		sendFresh(ctx, id.node, ack, messages)
	case id.confirm && id.node != nil: // WAIT has to reach this very server
		sendOver(ctx, id.node, ack, messages)
	default: // go-redis follows redirections
		sendOver(ctx, s.client.(pool), ack, messages)
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

// Bounds reports whether requests return when their context ends: whether the client heeds deadlines while it waits for an
// answer, as go-redis does only if it is told to, and no replica has to acknowledge, which takes its time. A client of our own
// beside it, made by WithTimeout, could heed them in any case, but it has none of the hooks by which applications trace calls.
func (s *Store) Bounds() bool {
	c, ok := s.client.(*redis.Client)
	return ok && c.Options().ContextTimeoutEnabled && s.ack.Replicas == 0
}

// maxRedirections is how many MOVED and ASK replies are followed for one request, as go-redis does by default.
const maxRedirections = 3

// evaluate sends the command over a client of which nothing is known but that it can evaluate: a wrapper, or a mock.
func (r *request) evaluate(ctx context.Context) *redis.Cmd {
	client := r.store.client
	if _, ok := client.(pooled); ok { // its error is to come before the caller, whose patience ends with ctx, has gone
		if deadline, ends := ctx.Deadline(); ends {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, 50*time.Millisecond)))
			defer cancel()
		}
	}
	script := r.words[1].(string)
	var keys []string
	for _, key := range r.words[3 : 3+r.keys] {
		keys = append(keys, key.(string))
	}
	var args []any
	for _, arg := range r.words[3+r.keys:] {
		switch p := arg.(type) { // a client that is not go-redis's may not know pointers
		case *string:
			arg = *p
		case *int64:
			arg = *p
		}
		args = append(args, arg)
	}
	if r.words[0] == "eval" {
		return client.Eval(ctx, script, keys, args...)
	}
	return client.EvalSha(ctx, script, keys, args...)
}

// nodeOf returns the client of the server that has the key, if a new connection to that can be made. With itself it is asked
// for the sake of a command that has to reach this very server. Known is false for a client of which nothing is known, and
// with an error.
func (s *Store) nodeOf(ctx context.Context, key string, itself bool) (node *redis.Client, known bool, err error) {
	switch c := s.client.(type) {
	case *redis.Client:
		return c, true, nil
	case *redis.Ring:
		node, err = c.GetShardClientForKey(key)
	case *redis.ClusterClient:
		node, err = c.MasterForKey(ctx, key)
	case cluster:
		if !itself {
			return nil, false, nil
		}
		node, err = c.MasterForKey(ctx, key)
	case server:
		return nil, itself, nil
	default:
		return nil, false, nil
	}
	return node, err == nil, err
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
