package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stubGo is a go command that writes down what it was told, and fails in the folder benchmarks.
const stubGo = `#!/bin/sh
echo "go $*"
case $PWD in */benchmarks) exit 1 ;; esac
`

func makeWithStub(t *testing.T, target string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(stubGo), 0o700))
	cmd := exec.CommandContext(t.Context(), "make", "-C", "../..", "--old-file=redis-server", "--old-file=postgresql", target)
	// A make that runs this test is not this one's parent.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") })
	cmd.Env = append(cmd.Env, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAFailureKeepsNoLaterStageFromRunning(t *testing.T) {
	modules, err := findModules("../..")
	require.NoError(t, err)

	out, err := makeWithStub(t, "test")
	require.Error(t, err)
	require.Equal(t, len(modules), strings.Count(out, "go test -race -shuffle=on"), out)
	require.Contains(t, out, "-loki.schedules=", out)
	require.Contains(t, out, "-benchtime 1x", out)
	require.Contains(t, out, "make test: failed in ./benchmarks\n", out)

	out, err = makeWithStub(t, "vet")
	require.Error(t, err)
	require.Equal(t, len(modules), strings.Count(out, "go vet"), out)
	require.Contains(t, out, "make vet: failed in ./benchmarks\n", out)
}
