// Package redistest runs a real redis-server of a test's own.
//
// Each server has a free port, an empty directory and no persistence, and ends with the test, also when the test
// process is killed (on Linux). The program is the redis-server in PATH, or the one that [ProgramVar] names: any version
// of Redis or Valkey. It does not share anything with a server that happens to run on the machine.
package redistest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// TB is the part of [testing.TB] that is needed. A helper process of a test has no testing.TB and brings its own.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// ProgramVar is the environment variable with the path of the redis-server, or valkey-server, to test with.
const ProgramVar = "LOKI_TEST_REDIS_SERVER"

const (
	startTimeout  = 10 * time.Second // for a server to answer PING; a loaded machine takes a second
	startAttempts = 5                // a probed port can be lost to another process before the server binds it
)

// Server is a running redis-server. Its methods are for one goroutine at a time; Addr is for any.
type Server struct {
	binary string
	port   int
	dir    string
	conf   string // a configuration file, if there is one
	args   []string
	tls    *tls.Config // of its clients, if it speaks TLS
	proc   *process
}

// Start starts a server and waits until it answers. The arguments are added to its command line, for instance
// "--cluster-enabled", "yes".
func Start(tb TB, args ...string) *Server {
	tb.Helper()
	s := prepare(tb, args...)
	s.start(tb)
	return s
}

// start finds a port and runs the server at it.
func (s *Server) start(tb TB) {
	tb.Helper()
	var err error
	for range startAttempts {
		s.port = freePort(tb)
		if slices.Contains(s.args, "--cluster-enabled") {
			s.port = freeClusterPort(tb)
		}
		if err = s.run(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
}

// prepare is all of Start but the port and the process.
func prepare(tb TB, args ...string) *Server {
	tb.Helper()
	program := cmp.Or(os.Getenv(ProgramVar), "redis-server")
	binary, err := exec.LookPath(program)
	if err != nil {
		tb.Fatalf("redistest: there is no %s: run `make test`, which installs redis-server, or install the package redis-server: %v", program, err)
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	s := &Server{binary: binary, dir: dir, args: args}
	tb.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	return s
}

// Addr is where the server listens, also after Restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Client returns a client of the server, closed with the test.
func (s *Server) Client(tb TB, change ...func(*redis.Options)) *redis.Client {
	opts := &redis.Options{Addr: s.Addr(), TLSConfig: s.tls.Clone()}
	for _, f := range change {
		f(opts)
	}
	client := redis.NewClient(opts)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends the server at once, as a crash does. Killing a server that has ended does nothing.
func (s *Server) Kill() {
	if s.proc != nil {
		s.proc.kill()
	}
}

// Ended reports whether the server has ended.
func (s *Server) Ended() bool {
	select {
	case <-s.proc.ended:
		return true
	default:
		return false
	}
}

// Stop freezes the server: it accepts connections, since the kernel does that, and answers nothing.
func (s *Server) Stop(tb TB) { s.signal(tb, syscall.SIGSTOP) }

// Cont ends what Stop began.
func (s *Server) Cont(tb TB) { s.signal(tb, syscall.SIGCONT) }

func (s *Server) signal(tb TB, sig syscall.Signal) {
	tb.Helper()
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		tb.Fatalf("redistest: %v for the server at %s: %v", sig, s.Addr(), err)
	}
}

// Restart brings the server back on the same port, empty unless it has saved its data. A server that still runs is
// killed first. The arguments are added to those of Start.
func (s *Server) Restart(tb TB, args ...string) {
	tb.Helper()
	s.Kill()
	s.args = append(slices.Clone(s.args), args...)
	if err := s.run(); err != nil {
		tb.Fatalf("redistest: restart: %v", err)
	}
}

// run starts the process and waits until it is the one that answers at the port.
func (s *Server) run() error {
	port := []string{"--port", strconv.Itoa(s.port)}
	if s.tls != nil {
		port = []string{"--port", "0", "--tls-port", strconv.Itoa(s.port)}
	}
	args := append(port,
		"--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
		"--repl-diskless-sync-delay", "0", // a first replica need not wait five seconds for a second
	)
	args = append(args, s.args...)
	if s.conf != "" { // it has to come first
		args = append([]string{s.conf}, args...)
	}
	proc, err := start(s.binary, args)
	if err != nil {
		return err
	}
	s.proc = proc

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), TLSConfig: s.tls.Clone(), MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second})
	defer func() { _ = client.Close() }()
	pid := fmt.Sprintf("process_id:%d\r", proc.cmd.Process.Pid)
	for {
		info, err := client.Info(ctx, "server").Result()
		if err == nil && strings.Contains(info, pid) { // not another server that took the port
			return nil
		}
		select {
		case <-proc.ended:
			if strings.Contains(proc.output.String(), "Address already in use") {
				return fmt.Errorf("port %d was taken: %w", s.port, syscall.EADDRINUSE)
			}
			return fmt.Errorf("redis-server ended at once: %s", proc.output.String())
		case <-ctx.Done():
			proc.kill()
			return fmt.Errorf("redis-server did not answer within %v: %w\n%s", startTimeout, err, proc.output.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// process is one run of redis-server.
type process struct {
	cmd    *exec.Cmd
	output *lockedBuffer
	ended  chan struct{} // closed once the process has been waited for
}

// start runs the server from a goroutine that keeps its thread until the server has ended: the kernel sends the death
// signal when the *thread* that started the process ends, and Go ends threads as it likes.
func start(binary string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(binary, args...), output: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, after the process
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func freePort(tb TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: no free port: %v", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// lockedBuffer is what the server printed, for the message when it does not start.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
