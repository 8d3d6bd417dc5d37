package faultproxy_test

import (
	"bufio"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/faultproxy"
)

// target answers each line with "re: " and the line, and remembers the lines.
type target struct {
	addr string

	mu    sync.Mutex
	lines []string
}

func startTarget(t *testing.T) *target {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &target{addr: listener.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return s
}

func (s *target) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for in := bufio.NewScanner(conn); in.Scan(); {
		s.mu.Lock()
		s.lines = append(s.lines, in.Text())
		s.mu.Unlock()
		if _, err := conn.Write([]byte("re: " + in.Text() + "\n")); err != nil {
			return
		}
	}
}

func (s *target) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.lines...)
}

// client is one connection through the proxy.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *client {
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (c *client) send(line string) {
	_, err := c.conn.Write([]byte(line + "\n"))
	require.NoError(c.t, err)
}

// read waits at most for d.
func (c *client) read(d time.Duration) (string, error) {
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(d)))
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *client) ask(line string) string {
	c.send(line)
	answer, err := c.read(5 * time.Second)
	require.NoError(c.t, err)
	return answer
}

func TestPassesThrough(t *testing.T) {
	proxy := faultproxy.Start(t, startTarget(t).addr)
	a, b := dial(t, proxy), dial(t, proxy)
	require.Equal(t, "re: 1", a.ask("1"))
	require.Equal(t, "re: 2", b.ask("2"))
	require.Equal(t, "re: 3", a.ask("3"))
}

func TestRefuse(t *testing.T) {
	proxy := faultproxy.Start(t, startTarget(t).addr)
	before := dial(t, proxy)
	require.Equal(t, "re: 1", before.ask("1"))

	proxy.Refuse()
	_, err := before.read(5 * time.Second)
	requireCut(t, err)
	conn, err := net.Dial("tcp", proxy.Addr())
	if err == nil { // else the reset came before the connection was known to be made
		_, err = (&client{t: t, conn: conn, in: bufio.NewReader(conn)}).read(5 * time.Second)
		require.NoError(t, conn.Close())
	}
	requireCut(t, err)

	proxy.PassThrough()
	require.Equal(t, "re: 2", dial(t, proxy).ask("2"))
}

func TestDisconnectServesNewConnections(t *testing.T) {
	proxy := faultproxy.Start(t, startTarget(t).addr)
	before := dial(t, proxy)
	require.Equal(t, "re: 1", before.ask("1"))
	proxy.Disconnect()
	_, err := before.read(5 * time.Second)
	requireCut(t, err)
	require.Equal(t, "re: 2", dial(t, proxy).ask("2"))
}

func TestBlackHoleDeliversAfterwards(t *testing.T) {
	server := startTarget(t)
	proxy := faultproxy.Start(t, server.addr)
	before := dial(t, proxy)
	require.Equal(t, "re: 1", before.ask("1"))

	proxy.BlackHole()
	after := dial(t, proxy)
	before.send("2")
	after.send("3")
	_, err := before.read(50 * time.Millisecond)
	requireTimeout(t, err)
	_, err = after.read(50 * time.Millisecond)
	requireTimeout(t, err)
	require.Equal(t, []string{"1"}, server.got())

	require.NoError(t, after.conn.Close())
	proxy.PassThrough()
	answer, err := before.read(5 * time.Second)
	require.NoError(t, err)
	require.Equal(t, "re: 2", answer)
	require.Eventually(t, func() bool { return len(server.got()) == 3 }, 5*time.Second, time.Millisecond)
}

func TestForgetDropsTheConnectionsThereAre(t *testing.T) {
	server := startTarget(t)
	proxy := faultproxy.Start(t, server.addr)
	before, closed := dial(t, proxy), dial(t, proxy)
	require.Equal(t, "re: 1", before.ask("1"))
	require.Equal(t, "re: 2", closed.ask("2"))

	proxy.Forget()
	before.send("3")
	_, err := before.read(50 * time.Millisecond)
	requireTimeout(t, err)
	require.NoError(t, closed.conn.Close())
	require.Equal(t, "re: 4", dial(t, proxy).ask("4"), "a new connection")

	proxy.PassThrough()
	_, err = before.read(50 * time.Millisecond)
	requireTimeout(t, err)
	require.Equal(t, []string{"1", "2", "4"}, server.got())
	require.Equal(t, 3, proxy.Connections(), "the target does not learn that its client has gone")
}

func TestResetCutsAConnectionAtItsNextRequest(t *testing.T) {
	server := startTarget(t)
	proxy := faultproxy.Start(t, server.addr)
	before := dial(t, proxy)
	require.Equal(t, "re: 1", before.ask("1"))

	proxy.Reset()
	_, err := before.read(50 * time.Millisecond)
	requireTimeout(t, err)
	before.send("2")
	_, err = before.read(5 * time.Second)
	requireCut(t, err)
	require.Equal(t, "re: 3", dial(t, proxy).ask("3"))
	require.Equal(t, []string{"1", "3"}, server.got())
}

func TestDelay(t *testing.T) {
	proxy := faultproxy.Start(t, startTarget(t).addr)
	c := dial(t, proxy)
	proxy.Delay(80 * time.Millisecond)
	start := time.Now()
	require.Equal(t, "re: 1", c.ask("1"))
	require.GreaterOrEqual(t, time.Since(start), 80*time.Millisecond)
}

func TestLoseReplyAppliesTheRequest(t *testing.T) {
	server := startTarget(t)
	proxy := faultproxy.Start(t, server.addr)
	c := dial(t, proxy)
	fired := proxy.LoseReply(faultproxy.Containing("SET"))
	require.Equal(t, "re: get", c.ask("get"))

	c.send("set")
	_, err := c.read(5 * time.Second)
	requireCut(t, err)
	<-fired
	require.Equal(t, []string{"get", "set"}, server.got())
	require.Equal(t, "re: set", dial(t, proxy).ask("set"), "the fault fires once")
}

func TestAnswerKeepsTheRequestFromTheTarget(t *testing.T) {
	server := startTarget(t)
	proxy := faultproxy.Start(t, server.addr)
	c := dial(t, proxy)
	fired := proxy.Answer(faultproxy.Containing("set"), "-MISCONF no disk\n")
	require.Equal(t, "re: get", c.ask("get"))
	require.Equal(t, "-MISCONF no disk", c.ask("set"))
	<-fired
	require.Equal(t, "re: set", c.ask("set"), "the fault fires once")
	require.Equal(t, []string{"get", "set"}, server.got())
}

func requireCut(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection is still there")
}

func requireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
