package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/lokilock/loki"
	"github.com/redis/go-redis/v9"
)

const (
	// maxSending is how many requests of one queue are on their way at once, and so how many connections it uses. While
	// that many are, calls wait, and then go together in one pipeline: however many callers there are, they need no more.
	maxSending = 4

	// maxBatch bounds a pipeline. Each command of it waits for the replies to all.
	maxBatch = 128

	// overdue is how long requests may keep others waiting. After it they may be on dead connections, and others are sent
	// beside them, up to maxOverdue: go-redis by default gives a dead connection up after 5 s. New connections are rarely
	// dead.
	overdue         = 50 * time.Millisecond
	maxOverdue      = 32
	maxOverdueFresh = maxSending
)

// queueID names the calls that may share a pipeline. A node that does not answer keeps only its own calls waiting, and
// an operation only its own kind: renewals and releases never wait behind acquisitions.
type queueID struct {
	node    *redis.Client
	op      operation
	fresh   bool // over new connections
	confirm bool // with WAIT
}

// batcher sends each call by itself while few are on their way, and otherwise those that wait in one pipeline. It is safe
// for concurrent use.
//
// go-redis's AutoPipeline would do, but everybody who has the client shares it and its settings, a Ring has none, and it
// does not heed ctx once a command is queued.
type batcher struct {
	// carry sends messages and returns when each has its reply or its error.
	carry func(ctx context.Context, id queueID, messages []*message)

	mu     sync.Mutex // guards everything below; nothing is sent with it held
	queues map[queueID]*queue
}

// maxIdle is how many queues are kept that have no calls, since most are soon needed again. Nodes of a cluster come and go.
const maxIdle = 64

// queue is the calls of one queueID.
type queue struct {
	waiting []*call
	sending []*trip
	late    int // those of sending that are overdue, and no longer count
}

// message is a command, and what belongs to it.
type message struct {
	*redis.Cmd
	once   bool          // go-redis must not repeat it
	asking bool          // it follows an ASK redirection
	wait   *redis.IntCmd // the reply to WAIT, if it was sent behind the command

	trip  trip        // the batcher's, if it goes alone
	alone [1]*message // itself, then
}

// call is a message that waits for its turn. err may be read once done is closed.
type call struct {
	ctx     context.Context
	message *message
	sent    bool // guarded by the batcher's mutex
	done    chan struct{}
	err     error
}

var errNoTurn = errors.New("not sent: too many requests to this server were under way all the time")

// trip is one command, or one pipeline, on its way.
type trip struct {
	begun time.Time
	late  bool
}

// do sends m. It returns nil when m has its reply or its error, and an error where m must not be read: ctx, or its deadline,
// has ended before. A message that goes alone is sent on the caller's goroutine and returns when the client does, which by default
// does not heed ctx.
func (b *batcher) do(ctx context.Context, id queueID, m *message) error {
	b.mu.Lock()
	q := b.queues[id]
	if q == nil {
		if b.queues == nil {
			b.queues = make(map[queueID]*queue)
		}
		q = &queue{}
		b.queues[id] = q
	}
	if q.free() && len(q.waiting) == 0 {
		q.begin(&m.trip)
		b.mu.Unlock()
		defer b.end(id, q, &m.trip)
		m.alone[0] = m
		b.carry(ctx, id, m.alone[:])
		return nil
	}
	c := &call{ctx: ctx, message: m, done: make(chan struct{})}
	q.waiting = append(q.waiting, c)
	b.mu.Unlock()

	patience := time.NewTicker(overdue)
	defer patience.Stop()
	var late <-chan time.Time // ctx may live on after its deadline, for a request that is on its way: one that waits is sent no more
	if deadline, ends := ctx.Deadline(); ends {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-c.done:
			return c.err
		case <-patience.C:
			b.overtake(id, q)
		case <-late:
			if b.withdraw(q, c) {
				return loki.NotSent(fmt.Errorf("%w: %w", errNoTurn, context.DeadlineExceeded))
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// withdraw takes a call that waits out of the queue. It reports false if the call has been sent.
func (b *batcher) withdraw(q *queue, c *call) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.sent {
		return false
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(other *call) bool { return other == c })
	return true
}

func (q *queue) free() bool { return len(q.sending)-q.late < maxSending }

func (q *queue) idle() bool { return len(q.sending) == 0 } // then nothing waits either

func (q *queue) begin(r *trip) {
	r.begun = time.Now()
	q.sending = append(q.sending, r)
}

// end removes a request that has returned, and has calls sent that waited for it.
func (b *batcher) end(id queueID, q *queue, r *trip) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q.sending = slices.DeleteFunc(q.sending, func(other *trip) bool { return other == r })
	if r.late {
		q.late--
	}
	b.next(id, q)
	if len(b.queues) > maxIdle {
		maps.DeleteFunc(b.queues, func(_ queueID, q *queue) bool { return q.idle() })
	}
}

// overtake has waiting calls sent beside requests that take too long.
func (b *batcher) overtake(id queueID, q *queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := maxOverdue
	if id.fresh {
		limit = maxOverdueFresh
	}
	for _, r := range q.sending {
		if !r.late && q.late < limit && time.Since(r.begun) >= overdue {
			r.late = true
			q.late++
		}
	}
	b.next(id, q)
}

// next sends what waits, as far as requests may be on their way. It is called with mu held.
func (b *batcher) next(id queueID, q *queue) {
	for q.free() && len(q.waiting) > 0 {
		var batch []*call
		for len(q.waiting) > 0 && len(batch) < maxBatch {
			if c := q.waiting[0]; c.ctx.Err() == nil { // else its caller has gone
				c.sent = true
				batch = append(batch, c)
			}
			q.waiting = q.waiting[1:]
		}
		if len(batch) > 0 {
			r := &trip{}
			q.begin(r)
			go b.send(id, q, r, batch)
		}
	}
}

func (b *batcher) send(id queueID, q *queue, r *trip, batch []*call) {
	defer b.end(id, q, r)
	defer func() {
		v := recover() // of a hook of the client's owner: on this goroutine it would end the process
		for _, c := range batch {
			if v != nil {
				c.err = fmt.Errorf("the client panicked: %v\n%s", v, debug.Stack())
			}
			close(c.done)
		}
	}()
	messages := make([]*message, len(batch))
	for i, c := range batch {
		messages[i] = c.message
	}
	ctx, cancel := together(batch)
	defer cancel()
	b.carry(ctx, id, messages)
}

// together returns the context of a pipeline: the first caller's, except that it ends at the latest of all deadlines.
func together(batch []*call) (context.Context, context.CancelFunc) {
	ctx := batch[0].ctx
	if len(batch) == 1 {
		return ctx, func() {}
	}
	ctx = context.WithoutCancel(ctx)
	var last time.Time
	for _, c := range batch {
		deadline, ends := c.ctx.Deadline()
		if !ends {
			return ctx, func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// pool is a client that sends over connections of its own.
type pool interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error)
}

// sendOver sends over a client: a single message as a command, several as a pipeline, and WAIT behind them if replicas have
// to acknowledge. WAIT counts for everything that its connection has written, so one is enough, and
// go-redis repeats them together or not at all.
//
// go-redis does not repeat several messages: it would go on when the callers have long given their claims up.
func sendOver(ctx context.Context, client pool, ack ReplicaAck, messages []*message) {
	if m := messages[0]; len(messages) == 1 && ack.Replicas == 0 && !m.asking {
		_ = client.Process(ctx, m.sent(m.once))
		return
	}
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		for _, m := range messages {
			if m.asking {
				p.Do(ctx, "asking")
			}
			_ = p.Process(ctx, m.sent(m.once || len(messages) > 1))
		}
		if ack.Replicas == 0 {
			return nil
		}
		wait := redis.NewIntCmd(ctx, "wait", ack.Replicas, milliseconds(ack.Timeout))
		for _, m := range messages {
			m.wait = wait
		}
		return p.Process(ctx, wait)
	})
}

// sent is the message's command as go-redis gets it.
func (m *message) sent(once bool) redis.Cmder {
	if once {
		return sentOnce{m.Cmd}
	}
	return m.Cmd
}

// sentOnce is a command that go-redis does not repeat.
type sentOnce struct{ *redis.Cmd }

// NoRetry is for go-redis.
func (sentOnce) NoRetry() bool { return true }
