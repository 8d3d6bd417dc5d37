package postgrestest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// folders are where packages put what they keep out of PATH: Debian's, Alpine's, and PostgreSQL's own for Red Hat.
var folders = []string{"/usr/lib/postgresql/*/bin", "/usr/libexec/postgresql*", "/usr/pgsql-*/bin"}

// find returns the folder that has both programs.
func find() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && has(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	for _, pattern := range folders {
		found, _ := filepath.Glob(pattern)
		for _, folder := range slices.Backward(found) {
			if has(folder) {
				return folder, nil
			}
		}
	}
	return "", errors.New("there is no initdb and postgres, in PATH or where packages put them: run `make test`, which installs them, or install the package postgresql (postgresql-server, where there is one of that name)")
}

func has(folder string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(folder, program)); err != nil {
			return false
		}
	}
	return true
}

// initialize makes the data directory.
func (s *Server) initialize() (err error) {
	if s.binary, err = find(); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if s.owner, err = unprivileged(); err != nil {
			return err
		}
		if err := s.give(s.dir); err != nil {
			return err
		}
	}
	proc, err := start(filepath.Join(s.binary, "initdb"), []string{
		"-D", s.data(), "-U", Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
	}, s.attributes())
	if err != nil {
		return err
	}
	<-proc.ended
	if !proc.cmd.ProcessState.Success() {
		return fmt.Errorf("initdb: %v: %s", proc.cmd.ProcessState, proc.output.String())
	}
	return nil
}

// unprivileged is somebody to run the server as.
func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

// attributes are those of a process of the server.
func (s *Server) attributes() *syscall.SysProcAttr {
	attr := dieWithParent()
	attr.Credential = s.owner
	return attr
}

func (s *Server) signal(tb TB, sig syscall.Signal) {
	tb.Helper()
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		tb.Fatalf("postgrestest: %v for the server at port %d: %v", sig, s.port, err)
	}
}

// signalSessions signals the server's children. Nothing else has it for a parent.
func (s *Server) signalSessions(sig syscall.Signal) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _, _ := strings.Cut(string(stat), " ")
		_, rest, _ := strings.Cut(string(stat), ") ") // its name is in parentheses
		fields := strings.Fields(rest)                // state, parent, ...
		if id, err := strconv.Atoi(pid); err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(s.proc.cmd.Process.Pid) {
			_ = syscall.Kill(id, sig)
		}
	}
}

// process is one run of a program.
type process struct {
	cmd    *exec.Cmd
	output *lockedBuffer
	ended  chan struct{} // closed once the process has been waited for
}

// start runs a program from a goroutine that keeps its thread until the program has ended: the kernel sends the death
// signal when the *thread* that started the process ends, and Go ends threads as it likes.
func start(binary string, args []string, attr *syscall.SysProcAttr) (*process, error) {
	cmd := exec.Command(binary, args...) //nolint:noctx // it ends when the test says so, or with the test process
	p := &process{cmd: cmd, output: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	p.cmd.Dir = "/" // the server's user may not read the tests' own
	p.cmd.SysProcAttr = attr
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

// lockedBuffer is what a program printed, for the message when it does not start.
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
