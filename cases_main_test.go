package loki_test

// This file is what the tests of the field cases, cases_*_test.go, have in common: real servers, Lockers on them, and
// closures that go on for as long as the test wants.
//
// A case that is about durations runs in a bubble (inRig) where that can show it. Where it needs a real server, its
// lower bounds are strict, and its upper bounds leave room for a machine that is busy with something else.

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// TestMain runs the tests, or, in a process that a test has started, the worker that it is to be.
func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	if name := os.Getenv(workerVar); name != "" {
		os.Exit(runWorker(name))
	}
	code := m.Run()
	if err := dropSQLTable(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// quiet keeps go-redis from printing that servers cannot be reached which these tests have killed.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// patience is how long a test waits for something that should happen at once.
const patience = 10 * time.Second

// What the lock of the service key "job" is called in Redis.
const (
	lockKey  = "loki:{job}"
	fenceKey = "loki:{job}:fence"
)

// eventually polls a condition on the test's own goroutine, so that the condition may use require.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "it never came to this: "+what)
		}
	}
}

// requireGoroutines waits for the goroutines of this process to be no more than there were before. Tests that use it
// are not parallel.
func requireGoroutines(t *testing.T, before int) {
	t.Helper()
	eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "the goroutines have ended")
}

// realRedis is a redis-server of the test's own, and a client to look at it.
type realRedis struct {
	*redistest.Server
	t      *testing.T
	direct *redis.Client
}

func startRedis(t *testing.T, args ...string) *realRedis {
	t.Helper()
	server := redistest.Start(t, args...)
	return &realRedis{Server: server, t: t, direct: server.Client(t)}
}

// handler is one with a client of its own, as another process would have.
func (r *realRedis) handler(change ...func(*redis.Options)) *redishandler.Handler {
	return redishandler.New(r.Client(r.t, change...))
}

// proxy is a proxy in front of the server, and what to give to handler or Client to go through it.
func (r *realRedis) proxy() (*faultproxy.Proxy, func(*redis.Options)) {
	p := faultproxy.Start(r.t, r.Addr())
	return p, func(o *redis.Options) { o.Addr = p.Addr() }
}

// noRetries has a client report an error at once, and dial once.
func noRetries(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }

// value is the raw value at the lock's key: its token and more, empty if there is none.
func (r *realRedis) value() string { return r.direct.Get(context.Background(), lockKey).Val() }

// token is that of the claim in the lock's key.
func (r *realRedis) token() string {
	token, _, _ := strings.Cut(r.value(), " ")
	return token
}

// pttl is what is left of the lock's key: negative if it is not there or never expires.
func (r *realRedis) pttl() time.Duration {
	r.t.Helper()
	ttl, err := r.direct.PTTL(context.Background(), lockKey).Result()
	require.NoError(r.t, err)
	return ttl
}

// left are all keys but the one that may outlive a release.
func (r *realRedis) left() []string {
	r.t.Helper()
	keys, err := r.direct.Keys(context.Background(), "*").Result()
	require.NoError(r.t, err)
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":fence") })
}

func (r *realRedis) requireEmpty() {
	r.t.Helper()
	require.Empty(r.t, r.left())
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// refused is a handler whose server does not listen.
func refused(t *testing.T) *redishandler.Handler {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: closedPort(t), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	return redishandler.New(client)
}

// instance is a Locker of the service key "job", as one more process would have it. Secondary may be nil. It is closed
// with the test. Its handlers get more time than by default, since the machine may be busy; a case about that says so.
func instance(t *testing.T, primary, secondary loki.LockHandler, change ...func(*loki.Config)) *loki.Locker {
	t.Helper()
	c := loki.Config{ServiceKey: "job", Primary: primary, Secondary: secondary, PrimaryTimeout: patience, SecondaryTimeout: patience}
	for _, f := range change {
		f(&c)
	}
	l, err := loki.New(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func serviceKey(key string) func(*loki.Config) { return func(c *loki.Config) { c.ServiceKey = key } }
func mode(m loki.MirrorMode) func(*loki.Config) {
	return func(c *loki.Config) { c.Mirror = m }
}

// watched has a Locker tell log.
func watched(log *eventLog) func(*loki.Config) {
	return func(c *loki.Config) { c.Observer = log.observe }
}

func handlerTimeout(primary, secondary time.Duration) func(*loki.Config) {
	return func(c *loki.Config) { c.PrimaryTimeout, c.SecondaryTimeout = primary, secondary }
}

// bothModes runs a test in each mirror mode.
func bothModes(t *testing.T, test func(t *testing.T, m loki.MirrorMode)) {
	for _, m := range []loki.MirrorMode{loki.MirrorAsync, loki.MirrorSync} {
		t.Run(m.String(), func(t *testing.T) { test(t, m) })
	}
}

// holding is a call whose closure goes on, whatever becomes of its context, until the test ends it.
type holding struct {
	t        *testing.T
	started  chan struct{} // closed when fn has begun
	returned chan struct{} // closed when the call has returned
	stop     chan struct{}
	once     sync.Once

	ctx context.Context // fn's own; valid once it has started
	at  time.Time       // when it started
	fn  error           // what fn returns; set before stop is closed
	err error           // what the call returned
	out loki.Outcome
}

// begin calls in a goroutine of its own.
func begin(ctx context.Context, t *testing.T, l *loki.Locker, expiry time.Duration, opts ...loki.Option) *holding {
	h := &holding{t: t, started: make(chan struct{}), returned: make(chan struct{}), stop: make(chan struct{})}
	opts = append(slices.Clone(opts), loki.WithOutcome(&h.out))
	go func() {
		defer close(h.returned)
		h.err = l.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
			h.ctx, h.at = ctx, time.Now()
			close(h.started)
			<-h.stop
			return h.fn
		}, opts...)
	}()
	t.Cleanup(func() {
		h.letGo(nil)
		<-h.returned
	})
	return h
}

// hold is begin, and waits until fn runs.
func hold(t *testing.T, l *loki.Locker, expiry time.Duration, opts ...loki.Option) *holding {
	t.Helper()
	h := begin(t.Context(), t, l, expiry, opts...)
	h.requireStarted()
	return h
}

func (h *holding) requireStarted() {
	h.t.Helper()
	select {
	case <-h.started:
	case <-h.returned:
		select {
		case <-h.started:
		default:
			require.FailNow(h.t, "fn did not run", "%v", h.err)
		}
	case <-time.After(patience):
		require.FailNow(h.t, "fn has not started")
	}
}

// requireNotStarted demands that fn has not begun so far.
func (h *holding) requireNotStarted() {
	h.t.Helper()
	select {
	case <-h.started:
		require.FailNow(h.t, "fn runs")
	default:
	}
}

func (h *holding) letGo(err error) {
	h.once.Do(func() {
		h.fn = err
		close(h.stop)
	})
}

// end has fn return nil, and returns what the call does.
func (h *holding) end() error { return h.endWith(nil) }

func (h *holding) endWith(err error) error {
	h.t.Helper()
	h.letGo(err)
	return h.wait()
}

// wait is for a call that ends by itself.
func (h *holding) wait() error {
	h.t.Helper()
	select {
	case <-h.returned:
	case <-time.After(patience):
		require.FailNow(h.t, "the call does not return")
	}
	return h.err
}

// requireLost waits for fn's context to end because the lock was lost, and returns the cause.
func (h *holding) requireLost(reason error) error {
	h.t.Helper()
	select {
	case <-h.ctx.Done():
	case <-time.After(patience):
		require.FailNow(h.t, "fn is not told that the lock is lost")
	}
	cause := context.Cause(h.ctx)
	require.ErrorIs(h.t, cause, loki.ErrLockLost)
	require.ErrorIs(h.t, cause, reason)
	return cause
}

// requireRuns runs a closure that has to run, once and without an error.
func requireRuns(t *testing.T, l *loki.Locker, opts ...loki.Option) loki.Outcome {
	t.Helper()
	var out loki.Outcome
	ran := 0
	err := l.ExecuteWithinLock(t.Context(), 30*time.Second, func(context.Context) error { ran++; return nil },
		append(slices.Clone(opts), loki.WithOutcome(&out))...)
	require.NoError(t, err)
	require.Equal(t, 1, ran)
	require.True(t, out.Ran)
	return out
}

// requireSkipped runs a closure that must be skipped because the lock is held elsewhere.
func requireSkipped(t *testing.T, l *loki.Locker, opts ...loki.Option) {
	t.Helper()
	err := l.ExecuteWithinLock(t.Context(), 30*time.Second, mustNotRun(t), opts...)
	require.ErrorIs(t, err, loki.ErrBusy)
	require.NotErrorIs(t, err, loki.ErrUnavailable)
}

// meter counts closures that run at the same time.
type meter struct {
	mu                 sync.Mutex
	running, most, ran int
}

func (m *meter) enter() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running++
	m.ran++
	m.most = max(m.most, m.running)
}

func (m *meter) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
}

func (m *meter) counts() (ran, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ran, m.most
}

// scriptedWrites are the commands with which the scripts changed something, as "name key".
func scriptedWrites(commands []redistest.Command) []string {
	var writes []string
	for _, c := range commands {
		if name := c.Name(); slices.Contains([]string{"set", "setnx", "setex", "psetex", "del", "expire", "pexpire", "persist"}, name) {
			writes = append(writes, name+" "+c.Args[1])
		}
	}
	return writes
}

// assertLost is for goroutines of a test's own, which must not use require.
func assertLost(t *testing.T, err error) bool {
	t.Helper()
	return assert.ErrorIs(t, err, loki.ErrLockLost)
}
