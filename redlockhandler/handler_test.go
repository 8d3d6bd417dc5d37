package redlockhandler_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
	"github.com/lokilock/loki/redlockhandler"
)

var (
	_ loki.LockHandler = (*redlockhandler.Handler)(nil)
	_ loki.Granter     = (*redlockhandler.Handler)(nil)
	_ loki.Extender    = (*redlockhandler.Handler)(nil)
	_ loki.Notifier    = (*redlockhandler.Handler)(nil)
	_ loki.Inspector   = (*redlockhandler.Handler)(nil)
	_ loki.Validator   = (*redlockhandler.Handler)(nil)
)

func TestKeepsOnEveryServerWhatAHandlerKeeps(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithPrefix("mine:"))
	c := claim("k", time.Minute)
	require.Equal(t, loki.Grant{Held: true}, q.mustHold(c), "no fence")
	for _, f := range q.at {
		f.handler = redishandler.New(f.redis, redishandler.WithPrefix("mine:"))
		require.Eventually(t, func() bool { return f.value("mine:{k}") != "" }, patience, time.Millisecond)
		fields := strings.SplitN(f.value("mine:{k}"), " ", 4)
		require.Equal(t, c.Token, fields[0])
		require.Equal(t, c.Holder, fields[3])
		require.Greater(t, f.ttl("mine:{k}"), c.Expiry-patience)
		holder := f.mustBeBusy(claim("k", time.Minute)).HeldBy
		require.Equal(t, c.Holder, holder.ID, "a single server's handler reads the same")
		require.True(t, f.extend(c))
	}
	q.release(c)
	q.nowhere()
}

func TestAsksServersForMoreThanItPromises(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Hour)
	before := time.Now()
	q.mustHold(c)
	q.everywhere(c)
	check := func() {
		for _, f := range q.at {
			ttl := f.ttl("loki:{k}")
			require.Greater(t, ttl, c.Expiry+c.Expiry/100-time.Since(before), "for clocks that run fast")
			require.LessOrEqual(t, ttl, c.Expiry+c.Expiry/100+2*time.Millisecond)
		}
	}
	check()
	c.Expiry = 2 * time.Hour
	before = time.Now()
	require.True(t, q.extend(c))
	for _, f := range q.at {
		require.Eventually(t, func() bool { return f.ttl("loki:{k}") > c.Expiry }, patience, time.Millisecond)
	}
	check()
	holder := q.mustBeBusy(claim("k", time.Minute)).HeldBy
	require.InDelta(t, c.Expiry, holder.Left, float64(patience), "a rival is told of what was promised")
}

func TestRemembersTheTokenThatWasReleased(t *testing.T) {
	q := newQuorum(t, 3)
	a, b := mirrored(claim("k", time.Minute)), claim("k", time.Minute)
	q.mustHold(a)
	q.everywhere(a)
	q.release(a)
	for _, f := range q.at {
		require.Eventually(t, func() bool { return f.value("loki:{k}") == "" && f.value("loki:{k}:fence") != "" }, patience, time.Millisecond)
		f.requireTTL("loki:{k}:fence", a.Expiry)
	}
	require.Equal(t, a.Token, q.mustHold(b).Released)
}

// One server missed the last release and remembers the one before. Which of two was the last nobody can tell.
func TestTellsNoReleasedTokenThatServersAreNotAtOneAbout(t *testing.T) {
	q := newQuorum(t, 3)
	q.gates[2].holdBefore() // two votes decide
	a, b := mirrored(claim("k", time.Minute)), mirrored(claim("k", time.Minute))
	for i, c := range []loki.Claim{a, b} {
		q.at[i].mustHold(c)
		q.at[i].release(c)
	}
	require.Empty(t, q.mustHold(claim("k", time.Minute)).Released)
}

func TestHandlerOfServersSurvivesTheLossOfAMinority(t *testing.T) {
	for _, n := range []int{3, 5, 7} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) {
			t.Parallel()
			q := newQuorum(t, n)
			before := claim("before", time.Minute)
			q.mustHold(before)
			for _, f := range q.at[n/2+1:] {
				f.server.Kill()
			}
			require.True(t, q.extend(before))
			q.release(before)
			c, rival := claim("k", time.Minute), claim("k", time.Minute)
			q.mustHold(c)
			require.Equal(t, c.Holder, q.mustBeBusy(rival).HeldBy.ID)
			holder, held, err := q.handler.Inspect(q.context(), "k")
			require.NoError(t, err)
			require.True(t, held)
			require.Equal(t, c.Holder, holder.ID)
			q.release(c)
			q.mustHold(rival)

			q.at[0].server.Kill()
			for name, call := range quorumCalls(q.handler, rival) {
				err := call(q.context())
				requireUnavailable(t, err, "unreachable")
				require.Len(t, votes(t, err), n, name)
			}
		})
	}
}

// clientsOf is clients of n servers that nothing is asked of.
func clientsOf(t *testing.T, n int) []redlockhandler.Client {
	var clients []redlockhandler.Client
	for i := range n {
		client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("redis-%d.invalid:6379", i+1)})
		t.Cleanup(func() { _ = client.Close() })
		clients = append(clients, client)
	}
	return clients
}

func TestHandlerOfWrongClientsIsRefused(t *testing.T) {
	three := clientsOf(t, 3)
	again := clientsOf(t, 1)[0]
	var none *redis.Client
	for text, clients := range map[string][]redlockhandler.Client{
		"a majority of 0 servers":                                   nil,
		"a majority of 1 servers":                                   three[:1],
		"a majority of 2 servers":                                   three[:2],
		"survives the loss of no more servers than one of 3":        clientsOf(t, 4),
		"the client of server 2 is nil":                             {three[0], nil, three[2]},
		"the client of server 3 is nil":                             {three[0], three[1], none},
		"the clients of servers 1 and 3 are for the same server":    {three[0], three[1], three[0]},
		"the clients of servers 1 and 2 are for the same server":    {three[0], again, three[2]},
		"which would vote twice: each needs a server of its own":    {three[0], three[1], wrapping{three[2]}, three[2], wrapping{three[2]}},
		"the clients of servers 2 and 3 are for the same server, w": {three[0], wrapping{three[1]}, wrapping{three[1]}},
	} {
		t.Run(text, func(t *testing.T) {
			q := redlockhandler.New(clients)
			require.ErrorContains(t, q.Validate(), text)
			for _, call := range quorumCalls(q, claim("k", time.Minute)) {
				requireMistake(t, call(t.Context()), text)
			}
		})
	}
	require.NoError(t, redlockhandler.New(three).Validate())
}

func TestOptionsThatAreRefused(t *testing.T) {
	three := clientsOf(t, 3)
	for text, opt := range map[string]redlockhandler.Option{
		"contains a brace":                       redlockhandler.WithPrefix("{"),
		"an Option is nil":                       nil,
		"a server timeout of -1s would let no":   redlockhandler.WithServerTimeout(-time.Second),
		"a server timeout of 0s would let no se": redlockhandler.WithServerTimeout(0),
	} {
		require.ErrorContains(t, redlockhandler.New(three, opt).Validate(), text)
	}
	require.NoError(t, redlockhandler.New(three, redlockhandler.WithLokiNetKeys(), redlockhandler.WithServerTimeout(time.Second)).Validate())
}

func TestTLSHandshakeThatIsRefusedIsAPermanentError(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	var clients []*redis.Client
	for range 3 { // each asks for a certificate, which the client has not
		server := redistest.StartTLS(t, authority, authority.Issue(t))
		clients = append(clients, server.Client(t, func(o *redis.Options) { o.TLSConfig = &tls.Config{RootCAs: authority.Pool()} })) //nolint:gosec // the default is to be tested
	}
	_, err := redlockhandler.New(clients, redlockhandler.WithServerTimeout(patience)).Lock(t.Context(), claim("k", time.Minute))
	requireMistake(t, err, "certificate required")
}

func TestThatNobodyMade(t *testing.T) {
	var none *redlockhandler.Handler
	for _, q := range []*redlockhandler.Handler{none, {}} {
		require.ErrorContains(t, q.Validate(), "was not made by New")
		_, err := q.Lock(t.Context(), claim("k", time.Minute))
		require.ErrorContains(t, err, "was not made by New")
	}
}

func TestRefusesClaimsThatAHandlerRefuses(t *testing.T) {
	q := redlockhandler.New(clientsOf(t, 3))
	for text, change := range map[string]func(*loki.Claim){
		"key is empty":        func(c *loki.Claim) { c.Key = "" },
		"that is empty":       func(c *loki.Claim) { c.Token = "" },
		"it must be positive": func(c *loki.Claim) { c.Expiry = 0 },
		"cannot be negative":  func(c *loki.Claim) { c.Fence = -1 },
	} {
		c := claim("k", time.Minute)
		change(&c)
		_, err := q.Lock(t.Context(), c)
		requireMistake(t, err, text)
	}
}

func TestHandlerOfLokiNetKeys(t *testing.T) {
	q := newQuorum(t, 3, redlockhandler.WithLokiNetKeys())
	for _, f := range q.at[:2] {
		f.do("SET", "k", "a LokiNet holder", "PX", 60000)
	}
	require.Equal(t, "LokiNet, or a value that is not a lock's", q.mustBeBusy(claim("k", time.Minute)).HeldBy.ID)
	for _, f := range q.at[:2] {
		f.do("DEL", "k")
	}
	c := claim("k", time.Minute)
	q.mustHold(c)
	q.release(c)
	q.nowhere()
}

// wrapping is a client as a tracing library would make it: other errors around those of go-redis.
type wrapping struct{ redlockhandler.Client }

func (w wrapping) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := w.Client.EvalSha(ctx, sha, keys, args...)
	if cmd.Err() != nil {
		cmd.SetErr(fmt.Errorf("traced: %w", cmd.Err()))
	}
	return cmd
}

// Two votes say who holds, and three say until when.
func TestInspectWaitsForTheVoteThatTellsTheEnd(t *testing.T) {
	q := newQuorum(t, 3)
	c := claim("k", time.Minute)
	q.at[0].mustHold(c)
	c.Expiry = time.Hour
	q.at[1].mustHold(c)
	q.at[2].mustHold(c)
	q.gates[2].holdBefore()
	go func() {
		for _, g := range q.gates[:2] {
			for n := 0; n < 1; _, n = g.counts() {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(20 * time.Millisecond) // for a wrong answer to be given; the right one waits for the gate
		q.gates[2].open()
	}()
	holder, held, err := q.handler.Inspect(q.context(), "k")
	require.NoError(t, err)
	require.True(t, held)
	require.Greater(t, holder.Left, 30*time.Minute)
}
