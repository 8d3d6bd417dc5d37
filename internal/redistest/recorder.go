package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// recorderTimeout bounds the wait for MONITOR to show what was sent.
const recorderTimeout = 5 * time.Second

// Recorder is what MONITOR shows, from the moment it was made. It is for many goroutines at once.
type Recorder struct {
	marker *redis.Client // its commands tell the Recorder how far MONITOR has got
	name   string        // of the marker's connections, so that they can be left out

	mu       sync.Mutex
	commands []Command
	marks    int
}

// Command is one command that the server ran.
type Command struct {
	Args   []string
	Script bool // sent by a script, not by a client
}

// Name is the command's name in lower case.
func (c Command) Name() string { return strings.ToLower(c.Args[0]) }

// Record begins to record what the server runs. It ends with the test.
func (s *Server) Record(tb TB) *Recorder {
	tb.Helper()
	conn, err := net.DialTimeout("tcp", s.Addr(), recorderTimeout)
	if err != nil {
		tb.Fatalf("redistest: MONITOR: %v", err)
	}
	lines := bufio.NewReader(conn)
	_ = conn.SetReadDeadline(time.Now().Add(recorderTimeout))
	if _, err = conn.Write([]byte("MONITOR\r\n")); err == nil {
		_, err = lines.ReadString('\n') // +OK
	}
	if err != nil {
		tb.Fatalf("redistest: MONITOR: %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})

	r := &Recorder{marker: s.Client(tb), name: fmt.Sprintf("recorder-%p", conn)}
	done := make(chan struct{})
	tb.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			r.add(line)
		}
	}()
	return r
}

// Sent returns the commands that clients sent, in order, without those that set a connection up.
func (r *Recorder) Sent(tb TB) []Command {
	tb.Helper()
	setUp := []string{"hello", "client", "auth", "select", "command", "cluster"}
	return slices.DeleteFunc(r.all(tb), func(c Command) bool { return c.Script || slices.Contains(setUp, c.Name()) })
}

// Scripted returns the commands that scripts sent, in order.
func (r *Recorder) Scripted(tb TB) []Command {
	tb.Helper()
	return slices.DeleteFunc(r.all(tb), func(c Command) bool { return !c.Script })
}

// all waits until MONITOR has shown everything that was answered before the call.
func (r *Recorder) all(tb TB) []Command {
	tb.Helper()
	r.mu.Lock()
	before := r.marks
	r.mu.Unlock()
	if err := r.marker.Echo(context.Background(), r.name).Err(); err != nil {
		tb.Fatalf("redistest: the recorder's mark: %v", err)
	}
	for deadline := time.Now().Add(recorderTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		commands, marks := slices.Clone(r.commands), r.marks
		r.mu.Unlock()
		if marks > before {
			return commands
		}
	}
	tb.Fatalf("redistest: MONITOR did not show the recorder's mark within %v", recorderTimeout)
	return nil
}

// add parses a line such as
//
//	+1700000000.000001 [0 127.0.0.1:50000] "set" "a" "b"
func (r *Recorder) add(line string) {
	_, rest, _ := strings.Cut(line, "[")
	source, rest, _ := strings.Cut(rest, "] ")
	c := Command{Script: strings.HasSuffix(source, " lua")}
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		arg, _ := strconv.Unquote(quoted)
		c.Args = append(c.Args, arg)
		rest = rest[len(quoted):]
	}
	if len(c.Args) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(c.Args) == 2 && c.Args[1] == r.name {
		r.marks++
		return
	}
	r.commands = append(r.commands, c)
}
