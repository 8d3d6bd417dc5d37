package postgrestest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Skipper is the [TB] of a test that can be left out.
type Skipper interface {
	TB
	Skipf(format string, args ...any)
}

// Pooler is a running PgBouncer in front of a server.
type Pooler struct {
	port int
	dsn  func(params ...string) string
}

// StartPooler starts a PgBouncer that lends the server's connections on after each transaction, two of them for each login
// and database. settings are added to its [pgbouncer] section, such as "query_wait_timeout=1"; users may log in beside the
// superuser. The test is skipped where there is no pgbouncer.
func StartPooler(tb Skipper, s *Server, users []string, settings ...string) *Pooler {
	tb.Helper()
	binary, err := findPooler()
	if err != nil {
		tb.Skipf("%v", err)
	}
	dir, err := os.MkdirTemp("", "postgrestest-pooler-")
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Pooler{port: freePort(tb), dsn: s.DSN}
	var logins strings.Builder
	for _, user := range append([]string{Superuser}, users...) {
		fmt.Fprintf(&logins, "%q \"\"\n", user)
	}
	config := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%[1]d
nowhere = host=127.0.0.1 port=%[1]d
down = host=127.0.0.1 port=1
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[2]d
unix_socket_dir =
auth_type = trust
auth_file = %[3]s
pool_mode = transaction
default_pool_size = 2
%[4]s
`, s.port, p.port, filepath.Join(dir, "users"), strings.Join(settings, "\n"))
	for name, content := range map[string]string{"users": logins.String(), "pgbouncer.ini": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatalf("postgrestest: %v", err)
		}
		if err := s.give(filepath.Join(dir, name)); err != nil {
			tb.Fatalf("postgrestest: %v", err)
		}
	}
	if err := s.give(dir); err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	proc, err := start(binary, []string{filepath.Join(dir, "pgbouncer.ini")}, s.attributes())
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	tb.Cleanup(proc.kill)
	for deadline := time.Now().Add(startTimeout); ; {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port)) //nolint:noctx // on this machine
		if err == nil {
			_ = conn.Close()
			return p
		}
		select {
		case <-proc.ended:
			tb.Fatalf("postgrestest: pgbouncer ended at once: %s", proc.output.String())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			tb.Fatalf("postgrestest: pgbouncer did not answer: %v: %s", err, proc.output.String())
		}
	}
}

// DSN is [Server.DSN] by way of the pooler.
func (p *Pooler) DSN(params ...string) string {
	return p.dsn(append([]string{fmt.Sprintf("port=%d", p.port)}, params...)...)
}

// findPooler returns the program, which Debian keeps out of an ordinary user's PATH.
func findPooler() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no pgbouncer: run `make test`, which installs it, or install the package pgbouncer")
}
