package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

// The test binary is also the program, so that there can be two processes of it.
const asProgram = "BATCHJOB_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is one run of the program. Its log is read line by line.
type process struct {
	cmd *exec.Cmd
	log *bufio.Scanner
	all strings.Builder
}

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), append(env, asProgram+"=1")...)
	pipe, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	p.log = bufio.NewScanner(pipe)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// readUntil returns the first line that contains text.
func (p *process) readUntil(t *testing.T, text string) string {
	t.Helper()
	for p.log.Scan() {
		p.all.WriteString(p.log.Text() + "\n")
		if strings.Contains(p.log.Text(), text) {
			return p.log.Text()
		}
	}
	require.Fail(t, "the process ended without saying so", "%q is not in\n%s", text, p.all.String())
	return ""
}

// wait returns the exit code and the whole log.
func (p *process) wait() (code int, log string) {
	for p.log.Scan() {
		p.all.WriteString(p.log.Text() + "\n")
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode(), p.all.String()
}

func redisURL(server *redistest.Server) string { return "REDIS_URL=redis://" + server.Addr() }

func held(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	n, err := server.Client(t).Exists(t.Context(), "loki:{invoice-batch}").Result()
	require.NoError(t, err)
	return n
}

func TestTheSecondProcessIsSkipped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first := start(t, []string{redisURL(server), "MSSQL_DSN="}, "-for", "1m")
	first.readUntil(t, "the job runs")

	code, log := start(t, []string{redisURL(server), "MSSQL_DSN="}, "-for", "1m").wait()
	require.Zero(t, code, "skipped is no failure: %s", log)
	require.Contains(t, log, "skipped")
	require.Contains(t, log, fmt.Sprintf("(pid %d)", first.cmd.Process.Pid), "who is on it")
	require.NotContains(t, log, "the job runs")

	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	code, log = first.wait()
	require.Equal(t, 1, code, log)
	require.Contains(t, log, "terminated", "the cause")
	require.NotContains(t, log, "the job is done")
	require.Zero(t, held(t, server), "a signal gives the lock back")

	code, log = start(t, []string{redisURL(server), "MSSQL_DSN="}, "-for", "1ms").wait()
	require.Zero(t, code, log)
	require.Contains(t, log, "the job is done")
	require.Zero(t, held(t, server))
}

func TestASecondaryThatIsDownDoesNotKeepTheJobFromRunning(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dsn := "MSSQL_DSN=sqlserver://sa:secret@127.0.0.1:1?database=jobs&dial+timeout=1"
	code, log := start(t, []string{redisURL(server), dsn}, "-for", "500ms").wait()
	require.Zero(t, code, log)
	require.Contains(t, log, "the job is done")
	require.Contains(t, log, "loki: down", "it is in the log")
}

func TestAMissingServerIsASentence(t *testing.T) {
	t.Parallel()
	code, log := start(t, []string{"REDIS_URL=", "MSSQL_DSN="}).wait()
	require.Equal(t, 1, code)
	require.Contains(t, log, "REDIS_URL is not set: name a Redis server")
	require.Equal(t, 1, strings.Count(log, "\n"), "one line: %s", log)
}

func TestARedisThatIsDownIsAFailureWithItsReason(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	code, log := start(t, []string{"REDIS_URL=redis://127.0.0.1:1", "MSSQL_DSN="}).wait()
	require.Equal(t, 1, code)
	require.Contains(t, log, "no store available", log)
	require.Contains(t, log, "refused", "the reason")
	require.Less(t, time.Since(begin), 10*time.Second)
}
