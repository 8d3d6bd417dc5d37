package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

// failing is a TB that keeps what Fatalf was told.
type failing struct {
	testing.TB
	told []string
}

func (f *failing) Fatalf(format string, _ ...any) { f.told = append(f.told, format) }

func TestWhatFailsIsTriedAgain(t *testing.T) {
	tb := &failing{TB: t}
	attempts := 0
	patiently(tb, func(tb redistest.TB) {
		if attempts++; attempts < 3 {
			tb.Fatalf("attempt %d", attempts)
			t.Error("Fatalf has returned")
		}
	})
	require.Equal(t, 3, attempts)
	require.Empty(t, tb.told)
}

func TestPatienceEnds(t *testing.T) {
	tb := &failing{TB: t}
	attempts := 0
	patiently(tb, func(tb redistest.TB) {
		attempts++
		tb.Fatalf("no")
	})
	require.Equal(t, maxAttempts, attempts)
	require.Len(t, tb.told, 1)
}

// What has failed to come back can come back.
func TestAServerIsRestartedAfterARestartThatFailed(t *testing.T) {
	dir := t.TempDir()
	server := redistest.Start(t, "--dir", dir)
	attempts := 0
	patiently(t, func(tb redistest.TB) {
		if attempts++; attempts == 1 {
			require.NoError(t, os.RemoveAll(dir))
		} else {
			require.NoError(t, os.MkdirAll(dir, 0o700))
		}
		server.Restart(tb)
	})
	require.Equal(t, 2, attempts)
	require.NoError(t, server.Client(t).Ping(t.Context()).Err())
}
