package postgrestest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
)

// The test binary is also the process that is killed in TestServerEndsWithAKilledProcess.
const helperVar = "POSTGRESTEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) == "" {
		os.Exit(m.Run())
	}
	server := postgrestest.Start(helper{})
	var pid int
	var data string
	row := server.Open(helper{}).QueryRow("SELECT pg_backend_pid(), current_setting('data_directory')")
	if err := row.Scan(&pid, &data); err != nil {
		panic(err)
	}
	fmt.Println(pid, data)
	select {}
}

// helper is the TB of a process that is not a test.
type helper struct{}

func (helper) Helper()                           {}
func (helper) Cleanup(func())                    {}
func (helper) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func TestServer(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	server.Exec(t, "CREATE TABLE kept (n int)")
	db := server.Open(t)
	require.NoError(t, db.PingContext(t.Context()))
	ping := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return db.PingContext(ctx)
	}

	server.Stop(t)
	require.Error(t, ping(50*time.Millisecond), "neither the session that there was nor a new one answers")
	require.Error(t, ping(50*time.Millisecond))
	server.Cont(t)
	require.NoError(t, ping(10*time.Second))

	for _, end := range []func(){server.Kill, func() { server.Shutdown(t) }} {
		end()
		require.Error(t, server.Open(t).PingContext(t.Context()))
		server.Restart(t)
		var n int
		require.NoError(t, server.Open(t).QueryRowContext(t.Context(), "SELECT count(*) FROM kept").Scan(&n), "what was committed is kept")
	}
}

func TestServerEndsWithAKilledProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var session int
	var data string
	_, err = fmt.Fscan(out, &session, &data)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(data)) }) // the killed process cannot
	require.NoError(t, syscall.Kill(session, 0), "the server is not running")

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return ended(session) }, 10*time.Second, 5*time.Millisecond)
}

// ended takes a zombie for ended: who inherits it may be slow to wait for it.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
