package redistest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

// The test binary is also the process that is killed in TestServerEndsWithAKilledProcess.
const helperVar = "REDISTEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) == "" {
		os.Exit(m.Run())
	}
	server := redistest.Start(helper{})
	pid := strings.TrimSpace(field(server.Client(helper{}), "process_id"))
	fmt.Println(pid)
	select {}
}

// helper is the TB of a process that is not a test.
type helper struct{}

func (helper) Helper()                           {}
func (helper) Cleanup(func())                    {}
func (helper) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func field(client *redis.Client, name string) string {
	for line := range strings.Lines(client.Info(context.Background(), "server").Val()) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

func TestTwoServersAreApart(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	require.NotEqual(t, a.Addr(), b.Addr())
	require.NoError(t, a.Client(t).Set(t.Context(), "k", "v", 0).Err())
	require.ErrorIs(t, b.Client(t).Get(t.Context(), "k").Err(), redis.Nil)
}

func TestRestartIsEmptyAndAtTheSameAddress(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())

	server.Kill()
	require.Error(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }).Ping(t.Context()).Err())

	server.Restart(t)
	require.ErrorIs(t, client.Get(t.Context(), "k").Err(), redis.Nil)
}

func TestStopAndCont(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, 50*time.Millisecond })
	require.NoError(t, client.Ping(t.Context()).Err())
	server.Stop(t)
	require.Error(t, client.Ping(t.Context()).Err())
	server.Cont(t)
	require.Eventually(t, func() bool { return client.Ping(t.Context()).Err() == nil }, 5*time.Second, 5*time.Millisecond)
}

func TestServerEndsWithAKilledProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0), "the server is not running")

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return ended(pid) }, 5*time.Second, 5*time.Millisecond)
}

// ended takes a zombie for ended: who inherits it may be slow to wait for it.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestRecorder(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	recorder := server.Record(t)

	require.NoError(t, client.Set(t.Context(), "k", "a \"b\"\n\xff", 0).Err())
	require.NoError(t, client.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err())

	sent := recorder.Sent(t)
	require.Len(t, sent, 2)
	require.Equal(t, []string{"set", "k", "a \"b\"\n\xff"}, sent[0].Args)
	require.Equal(t, "eval", sent[1].Name())
	require.Equal(t, []redistest.Command{{Args: []string{"GET", "k"}, Script: true}}, recorder.Scripted(t))
}
