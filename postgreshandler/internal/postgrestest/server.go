// Package postgrestest runs a real PostgreSQL server of a test's own.
//
// Each server has a free port, a data directory of its own and no fsync, and ends with the test, also when the test
// process is killed (on Linux). PostgreSQL refuses to run as root: started by root, as in many containers, it runs as
// postgres or nobody. It does not share anything with a server that happens to run on the machine.
package postgrestest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// TB is the part of [testing.TB] that is needed. A helper process of a test has no testing.TB and brings its own.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

const (
	startTimeout  = 30 * time.Second // for a server to answer, also after a crash; a loaded machine takes seconds
	startAttempts = 5                // a probed port can be lost to another process before the server binds it
	answerTimeout = 5 * time.Second  // for one answer of a server that runs
)

// Superuser is who owns the server. There is no password.
const Superuser = "postgres"

// Server is a running server. Its methods are for one goroutine at a time; DSN and Port are for any.
type Server struct {
	binary string
	port   int
	dir    string // of everything; the data is a folder in it
	args   []string
	owner  *syscall.Credential
	proc   *process
}

// Start makes a server and waits until it answers. The arguments are added to its command line, for instance
// "-c", "max_connections=5".
func Start(tb TB, args ...string) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp("", "postgrestest-")
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	s := &Server{dir: dir, args: args}
	tb.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	if err := s.initialize(); err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	for range startAttempts {
		s.port = freePort(tb)
		if err = s.run(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	return s
}

// Port is where the server listens at 127.0.0.1, also after Restart.
func (s *Server) Port() int { return s.port }

// DSN names the server to pgx, with params such as "user=app" added. A later one overrides an earlier one.
func (s *Server) DSN(params ...string) string {
	all := []string{
		"host=127.0.0.1", fmt.Sprintf("port=%d", s.port), "user=" + Superuser, "dbname=postgres", "sslmode=disable",
	}
	return strings.Join(append(all, params...), " ")
}

// Open returns a pool on the server, closed with the test.
func (s *Server) Open(tb TB, params ...string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("pgx", s.DSN(params...))
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// Exec runs statements as the superuser, on a connection of its own.
func (s *Server) Exec(tb TB, statements ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the statements have been answered
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			tb.Fatalf("postgrestest: %s: %v", statement, err)
		}
	}
}

// Kill ends the server at once, as a crash does: no session is told. Killing a server that has ended does nothing.
func (s *Server) Kill() {
	if s.proc != nil {
		_ = s.proc.cmd.Process.Signal(syscall.SIGCONT) // its sessions, which Stop may have frozen, see that it has gone
		s.signalSessions(syscall.SIGKILL)
		s.proc.kill()
	}
}

// Stop freezes the server and all its sessions: the kernel goes on to accept connections, and nothing answers.
func (s *Server) Stop(tb TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGSTOP)
	s.signalSessions(syscall.SIGSTOP)
}

// Cont ends what Stop began.
func (s *Server) Cont(tb TB) {
	tb.Helper()
	s.signalSessions(syscall.SIGCONT)
	s.signal(tb, syscall.SIGCONT)
}

// Restart brings the server back at the same port, with what had been committed. One that still runs is killed first.
func (s *Server) Restart(tb TB) {
	tb.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		tb.Fatalf("postgrestest: restart: %v", err)
	}
}

// Shutdown ends the server as an administrator does who does not wait for sessions: each is told that it is ended.
func (s *Server) Shutdown(tb TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGINT)
	<-s.proc.ended
}

// run starts the process and waits until it is the one that answers at the port.
func (s *Server) run() error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.runOnce(deadline)
		// The sessions of a killed server may need a moment to see that it is gone.
		if !errors.Is(err, errStillInUse) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var errStillInUse = errors.New("the data is still in use by sessions of the server that was killed")

func (s *Server) runOnce(deadline time.Time) error {
	proc, err := start(filepath.Join(s.binary, "postgres"), slices.Concat([]string{
		"-D", s.data(), "-p", fmt.Sprint(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=64", "-c", "shared_buffers=16MB",
		"-c", "dynamic_shared_memory_type=mmap", // which stays in the data directory, whatever kills the server
	}, s.args), s.attributes())
	if err != nil {
		return err
	}
	s.proc = proc
	for {
		err := s.answers()
		if err == nil {
			return nil
		}
		select {
		case <-proc.ended:
			switch output := proc.output.String(); {
			case strings.Contains(output, "Address already in use"):
				return fmt.Errorf("port %d was taken: %w", s.port, syscall.EADDRINUSE)
			case strings.Contains(output, "is still in use"), strings.Contains(output, "already exists"):
				return errStillInUse
			default:
				return fmt.Errorf("postgres ended at once: %s", output)
			}
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			proc.kill()
			return fmt.Errorf("postgres did not answer within %v: %w\n%s", startTimeout, err, proc.output.String())
		}
	}
}

// answers reports whether it is this server that answers, and not another one that took the port.
func (s *Server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it has answered
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return err
	}
	if data != s.data() {
		return fmt.Errorf("the server at port %d keeps its data in %s", s.port, data)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func freePort(tb TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing to wait for
	if err != nil {
		tb.Fatalf("postgrestest: no free port: %v", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
