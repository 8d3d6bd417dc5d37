package loki_test

// This file is what the tests of the field cases, cases_*_test.go, have in common: real servers and Lockers on them.
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
	r := &realRedis{Server: server, t: t, direct: server.Client(t)}
	// The server knows the scripts, as one does that has been in use: a short lease has no time to spare.
	h, c := r.handler(), loki.Claim{Key: "warm-up", Token: "warm-up", Expiry: time.Minute}
	held, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	held, err = h.Extend(t.Context(), c)
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, h.Release(t.Context(), c))
	return r
}

// handler is one with a client of its own, as another process would have, which has a connection.
func (r *realRedis) handler(change ...func(*redis.Options)) *redishandler.Handler {
	client := r.Client(r.t, change...)
	client.Ping(r.t.Context()) // whose error is no news where the server is to be down
	return redishandler.New(client)
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
