package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

// The test binary is also the program, so that its exit code can be seen.
const asProgram = "SCHEDULEDWORKER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func output(t *testing.T, redisURL string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_URL="+redisURL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestEachOccurrenceRunsOnceWithARedisInside(t *testing.T) {
	t.Parallel()
	requireOnce(t, "")
}

func TestEachOccurrenceRunsOnceWithARedisServer(t *testing.T) {
	t.Parallel()
	requireOnce(t, "redis://"+redistest.Start(t).Addr())
}

func requireOnce(t *testing.T, redisURL string) {
	t.Helper()
	out, code := output(t, redisURL)
	require.Zero(t, code, out)
	require.Equal(t, occurrences, strings.Count(out, "ran on instance"), out)
	require.Contains(t, out, "Each occurrence ran once.")
}

// What the minimum hold is for: without it the lock is free again when the instance whose clock is behind comes.
func TestWithoutAMinimumHoldAnOccurrenceRunsOnEveryInstance(t *testing.T) {
	t.Parallel()
	out, code := output(t, "", "-min-hold", "0")
	require.Equal(t, 1, code, out)
	require.Regexp(t, `the occurrence at .* ran [23] times`, out)
}

func TestAServerThatIsNotThereIsASentence(t *testing.T) {
	t.Parallel()
	out, code := output(t, "redis://127.0.0.1:1")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "no Redis at 127.0.0.1:1", out)
}
