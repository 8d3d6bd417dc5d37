package redlockhandler_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
	"github.com/lokilock/loki/redlockhandler"
)

// patience is how long a test waits for something that should happen at once.
const patience = 5 * time.Second

// noWait has a client report an error at once instead of trying again.
func noWait(o *redis.Options) { o.MaxRetries = -1 }

// fixture is one server, a plain client to look at it, and a handler for it alone.
type fixture struct {
	t       *testing.T
	server  *redistest.Server
	redis   *redis.Client
	handler *redishandler.Handler
}

var tokens atomic.Int64

// claim is a new acquisition, by a holder whose name shows which.
func claim(key string, expiry time.Duration) loki.Claim {
	n := tokens.Add(1)
	return loki.Claim{Key: key, Token: fmt.Sprintf("%032x", n), Expiry: expiry, Holder: fmt.Sprintf("host %d, process", n)}
}

func mirrored(c loki.Claim) loki.Claim {
	c.Mirrored = true
	return c
}

func (f *fixture) grant(c loki.Claim) loki.Grant {
	f.t.Helper()
	g, err := f.handler.Grant(f.t.Context(), c)
	require.NoError(f.t, err)
	return g
}

func (f *fixture) mustHold(c loki.Claim) loki.Grant {
	f.t.Helper()
	g := f.grant(c)
	require.True(f.t, g.Held, "held by %+v", g.HeldBy)
	return g
}

func (f *fixture) mustBeBusy(c loki.Claim) loki.Grant {
	f.t.Helper()
	g := f.grant(c)
	require.False(f.t, g.Held)
	return g
}

func (f *fixture) release(c loki.Claim) {
	f.t.Helper()
	require.NoError(f.t, f.handler.Release(f.t.Context(), c))
}

func (f *fixture) extend(c loki.Claim) bool {
	f.t.Helper()
	held, err := f.handler.Extend(f.t.Context(), c)
	require.NoError(f.t, err)
	return held
}

func (f *fixture) value(key string) string {
	f.t.Helper()
	return f.redis.Get(f.t.Context(), key).Val()
}

func (f *fixture) ttl(key string) time.Duration {
	f.t.Helper()
	ttl, err := f.redis.PTTL(f.t.Context(), key).Result()
	require.NoError(f.t, err)
	return ttl
}

// requireTTL demands that key ends after d, counted from a moment ago.
func (f *fixture) requireTTL(key string, d time.Duration) {
	f.t.Helper()
	ttl := f.ttl(key)
	require.LessOrEqual(f.t, ttl, d, key)
	require.Greater(f.t, ttl, d-patience, key)
}

func (f *fixture) keys() []string {
	f.t.Helper()
	return f.redis.Keys(f.t.Context(), "*").Val()
}

func (f *fixture) do(args ...any) {
	f.t.Helper()
	require.NoError(f.t, f.redis.Do(f.t.Context(), args...).Err())
}

// requireUnavailable demands an outage of the store, with the text that says which.
func requireUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.True(t, loki.IsUnavailable(err), "%v is not taken for an outage", err)
	requireWords(t, err)
}

// requireMistake demands an error that must not make a Locker fall back.
func requireMistake(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.False(t, loki.IsUnavailable(err), "%v is taken for an outage", err)
	requireWords(t, err)
}

// requireWords demands what holds of the text of every error: it names the package, once a line, and no place in a script.
func requireWords(t *testing.T, err error) {
	t.Helper()
	for line := range strings.Lines(err.Error()) {
		require.Equal(t, 1, strings.Count(line, "redlockhandler: "), line)
	}
	require.NotContains(t, err.Error(), ", on @user_script:")
	require.NotContains(t, err.Error(), "(call to f_")
}

// requireTold demands a message from the store.
func requireTold(t *testing.T, told <-chan struct{}) {
	t.Helper()
	select {
	case _, ok := <-told:
		require.True(t, ok, "the channel is closed")
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, 10*time.Second, 5*time.Millisecond, message)
}

// never is for a server that a test does not let answer: who waits for it waits until the test gives up.
const never = time.Hour

// quorum is servers of the test's own, each with a client and a handler to look at it, and a quorum of all to test.
type quorum struct {
	t       *testing.T
	at      []*fixture // each server by itself
	gates   []*gate    // the quorum's clients
	handler *redlockhandler.Handler
}

// newQuorum has a patient quorum, unless an option says otherwise: a slow machine is no slow server.
func newQuorum(t *testing.T, n int, opts ...redlockhandler.Option) *quorum {
	q := &quorum{t: t}
	for range n {
		server := redistest.Start(t)
		q.at = append(q.at, &fixture{t: t, server: server, redis: server.Client(t, noWait), handler: redishandler.New(server.Client(t, noWait))})
	}
	q.gates, q.handler = q.another(opts...)
	return q
}

// first is a new quorum of the first n servers, which are emptied, for a test that is part of another.
func (q *quorum) first(t *testing.T, n int) *quorum {
	sub := &quorum{t: t}
	for _, f := range q.at[:n] {
		f := &fixture{t: t, server: f.server, redis: f.redis, handler: f.handler}
		f.do("FLUSHALL")
		sub.at = append(sub.at, f)
	}
	sub.gates, sub.handler = sub.another()
	return sub
}

// another is another process's quorum of the same servers. A server that is down is known to be without delay.
func (q *quorum) another(opts ...redlockhandler.Option) ([]*gate, *redlockhandler.Handler) {
	var gates []*gate
	for _, f := range q.at {
		gates = append(gates, newGate(q.t, f.server.Client(q.t, noWait, func(o *redis.Options) { o.DialerRetries = 1 })))
	}
	opts = append([]redlockhandler.Option{redlockhandler.WithServerTimeout(patience)}, opts...)
	return gates, redlockhandler.New(gates, opts...)
}

// context ends when something hangs that should not.
func (q *quorum) context() context.Context {
	ctx, cancel := context.WithTimeout(q.t.Context(), 2*patience)
	q.t.Cleanup(cancel)
	return ctx
}

func (q *quorum) grant(c loki.Claim) loki.Grant {
	q.t.Helper()
	g, err := q.handler.Grant(q.context(), c)
	require.NoError(q.t, err)
	return g
}

func (q *quorum) mustHold(c loki.Claim) loki.Grant {
	q.t.Helper()
	g := q.grant(c)
	require.True(q.t, g.Held, "held by %+v", g.HeldBy)
	return g
}

func (q *quorum) mustBeBusy(c loki.Claim) loki.Grant {
	q.t.Helper()
	g := q.grant(c)
	require.False(q.t, g.Held)
	return g
}

func (q *quorum) extend(c loki.Claim) bool {
	q.t.Helper()
	held, err := q.handler.Extend(q.context(), c)
	require.NoError(q.t, err)
	return held
}

func (q *quorum) release(c loki.Claim) {
	q.t.Helper()
	require.NoError(q.t, q.handler.Release(q.context(), c))
}

// everywhere waits until each server has the claim.
func (q *quorum) everywhere(c loki.Claim) {
	q.t.Helper()
	for _, f := range q.at {
		f.eventuallyHolds(c)
	}
}

// nowhere waits until no server has a key.
func (q *quorum) nowhere() {
	q.t.Helper()
	for _, f := range q.at {
		f.eventuallyEmpty()
	}
}

func (f *fixture) eventuallyHolds(c loki.Claim) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.holds(c) }, patience, time.Millisecond)
}

func (f *fixture) holds(c loki.Claim) bool {
	f.t.Helper()
	value := f.value("loki:{" + c.Key + "}")
	return len(value) > len(c.Token) && value[:len(c.Token)] == c.Token
}

func (f *fixture) eventuallyEmpty() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		keys, err := f.redis.Keys(f.t.Context(), "*").Result()
		return err == nil && len(keys) == 0
	}, 2*patience, time.Millisecond)
}

// votes are the verdicts in an error, in the order of the servers.
func votes(t *testing.T, err error) (verdicts []redlockhandler.Verdict) {
	t.Helper()
	var told *redlockhandler.Error
	require.ErrorAs(t, err, &told)
	for _, v := range told.Votes {
		verdicts = append(verdicts, v.Verdict)
	}
	return verdicts
}

// gate is a client whose calls a test can hold, before they are sent or after the server has answered. It heeds no
// context, as go-redis does not in the middle of a command.
type gate struct {
	*redis.Client

	mu            sync.Mutex
	before, after chan struct{} // closed: open
	shut          bool          // calls come back with an error at once
	entered       int           // calls that have come
	answered      int           // calls that the server has answered
}

// newGate is open.
func newGate(t *testing.T, client *redis.Client) *gate {
	g := &gate{Client: client, before: make(chan struct{}), after: make(chan struct{})}
	g.open()
	t.Cleanup(g.open) // before the client is closed
	return g
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, door := range []chan struct{}{g.before, g.after} {
		select {
		case <-door:
		default:
			close(door)
		}
	}
}

func (g *gate) holdBefore() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before = make(chan struct{})
}

// shutDown is as if the server were.
func (g *gate) shutDown() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

func (g *gate) holdAfter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.after = make(chan struct{})
}

func (g *gate) counts() (entered, answered int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entered, g.answered
}

func (g *gate) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	g.mu.Lock()
	before, shut := g.before, g.shut
	g.entered++
	g.mu.Unlock()
	if shut {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(io.EOF)
		return cmd
	}
	<-before
	cmd := g.Client.EvalSha(ctx, sha, keys, args...)
	if !redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") { // else the script comes, and is the same call
		g.leave()
	}
	return cmd
}

func (g *gate) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	cmd := g.Client.Eval(ctx, script, keys, args...)
	g.leave()
	return cmd
}

func (g *gate) leave() {
	g.mu.Lock()
	after := g.after
	g.answered++
	g.mu.Unlock()
	<-after
}

// quorumCalls are the operations that need a majority, for what has to be so in each.
func quorumCalls(q *redlockhandler.Handler, c loki.Claim) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Lock":    func(ctx context.Context) error { _, err := q.Lock(ctx, c); return err },
		"Grant":   func(ctx context.Context) error { _, err := q.Grant(ctx, c); return err },
		"Extend":  func(ctx context.Context) error { _, err := q.Extend(ctx, c); return err },
		"Release": func(ctx context.Context) error { return q.Release(ctx, c) },
		"Inspect": func(ctx context.Context) error { _, _, err := q.Inspect(ctx, c.Key); return err },
		"Notify":  func(ctx context.Context) error { _, err := q.Notify(ctx, c.Key); return err },
	}
}
