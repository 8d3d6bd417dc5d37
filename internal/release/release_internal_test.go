package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func initRepo(t *testing.T, repo string) {
	t.Helper()
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch", "main"},
		{"config", "user.name", "A maintainer"},
		{"config", "user.email", "maintainer@example.com"},
		{"add", "--all"},
		{"commit", "--quiet", "--message", "all: begin"},
	} {
		requireGit(t, repo, args...)
	}
}

func requireGit(t *testing.T, repo string, args ...string) string {
	t.Helper()
	out, err := git(t.Context(), repo, args...)
	require.NoError(t, err)
	return out
}

// smallRepo has three modules that need nothing but each other: a library, a driver for it and examples.
func smallRepo(t *testing.T) string {
	t.Helper()
	repo := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":        "module example.com/lib\n\ngo 1.26.0\n",
		"lib.go":        "// Package lib is one.\npackage lib\n\nconst Answer = 42\n",
		"LICENSE":       "Take it.\n",
		"CHANGELOG.md":  "# Changelog\n\n## [Unreleased]\n\n- An answer.\n",
		"driver/go.mod": "module example.com/lib/driver\n\ngo 1.26.0\n\nreplace example.com/lib => ../\n\nrequire example.com/lib v0.0.0-00010101000000-000000000000\n",
		"driver/d.go":   "package driver\n\nimport \"example.com/lib\"\n\nconst Twice = 2 * lib.Answer\n",
		"examples/go.mod": "module example.com/lib/examples\n\ngo 1.26.0\n\nreplace (\n\texample.com/lib => ../\n\texample.com/lib/driver => ../driver\n)\n\nrequire (\n" +
			"\texample.com/lib/driver v0.0.0-00010101000000-000000000000\n\texample.com/lib v0.0.0-00010101000000-000000000000 // indirect\n)\n",
		"examples/e.go": "package main\n\nimport \"example.com/lib/driver\"\n\nfunc main() { println(driver.Twice) }\n",
	} {
		name = filepath.Join(repo, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	initRepo(t, repo)
	return repo
}

func released(t *testing.T, repo string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append([]string{"-repo", repo}, args...), &out)
	return out.String(), err
}

func TestADryRunChangesNothing(t *testing.T) {
	repo := smallRepo(t)
	before := requireGit(t, repo, "rev-parse", "HEAD")
	out, err := released(t, repo, "-version", "v0.1.0")
	require.NoError(t, err)
	require.Contains(t, out, "driver/v0.1.0")
	require.Contains(t, out, "all: release v0.1.0")
	require.Contains(t, out, "dry run")
	require.Equal(t, before, requireGit(t, repo, "rev-parse", "HEAD"))
	require.Empty(t, requireGit(t, repo, "status", "--porcelain"))
	require.Empty(t, requireGit(t, repo, "tag", "--list"))
}

func TestARelease(t *testing.T) {
	repo := smallRepo(t)
	out, err := released(t, repo, "-version", "v0.1.0", "-write")
	require.NoError(t, err)
	require.Contains(t, out, "git push --atomic origin HEAD v0.1.0 driver/v0.1.0")
	require.Equal(t, "driver/v0.1.0\nv0.1.0", requireGit(t, repo, "tag", "--list"))
	require.Equal(t, requireGit(t, repo, "rev-parse", "HEAD~1"), requireGit(t, repo, "rev-parse", "v0.1.0^{commit}"))
	require.Equal(t, requireGit(t, repo, "rev-parse", "HEAD~1"), requireGit(t, repo, "rev-parse", "driver/v0.1.0^{commit}"))
	require.Empty(t, requireGit(t, repo, "status", "--porcelain"), "the tree has moved with the branch")

	// What is tagged needs nothing but what is tagged, and knows its checksum.
	driver := requireGit(t, repo, "show", "v0.1.0:driver/go.mod")
	require.Contains(t, driver, "require example.com/lib v0.1.0")
	require.NotContains(t, driver, "replace")
	require.Contains(t, requireGit(t, repo, "show", "v0.1.0:driver/go.sum"), "example.com/lib v0.1.0 h1:")
	require.Contains(t, requireGit(t, repo, "show", "v0.1.0:CHANGELOG.md"), "## [Unreleased]\n\n## [0.1.0] - "+time.Now().UTC().Format(time.DateOnly))

	// What comes after it is built from the tree, in which a user can be sent to any commit.
	driver = requireGit(t, repo, "show", "HEAD:driver/go.mod")
	require.Contains(t, driver, "replace example.com/lib => ../")
	require.Contains(t, driver, "require example.com/lib v0.1.0")
	for _, commit := range []string{"v0.1.0", "HEAD"} { // in both the examples run with nothing else
		clone := t.TempDir()
		requireGit(t, repo, "clone", "--quiet", "--branch", "main", repo, clone)
		requireGit(t, clone, "checkout", "--quiet", "--detach", requireGit(t, repo, "rev-parse", commit+"^{commit}"))
		p, err := newProxy(t.Context(), t.TempDir())
		require.NoError(t, err)
		p.goproxy = "off"
		out, err := p.command(t.Context(), filepath.Join(clone, "examples"), "run", "-mod=readonly", ".")
		require.NoError(t, err, commit)
		require.Equal(t, "84\n", out)
	}

	_, err = released(t, repo, "-version", "v0.1.0", "-write")
	require.ErrorContains(t, err, "example.com/lib/driver has the tag driver/v0.1.0 already")
	_, err = released(t, repo, "-version", "v0.2.0", "-write")
	require.ErrorContains(t, err, "nothing under Unreleased")

	write(t, repo, "CHANGELOG.md", strings.Replace(requireGit(t, repo, "show", "HEAD:CHANGELOG.md"), "## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", 1)+"\n")
	requireGit(t, repo, "commit", "--quiet", "--all", "--message", "all: more")
	_, err = released(t, repo, "-version", "v0.2.0", "-write")
	require.NoError(t, err)
	require.Contains(t, requireGit(t, repo, "show", "driver/v0.2.0:driver/go.mod"), "require example.com/lib v0.2.0")
}

func TestWhatKeepsARepositoryFromBeingReleased(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		spoil   func(t *testing.T, repo string)
		want    string
	}{
		"no version":         {"", nil, `"" is no version of example.com/lib: use one like v0.1.0`},
		"no v":               {"0.1.0", nil, "use one like v0.1.0"},
		"not all of it":      {"v0.1", nil, "use one like v0.1.0"},
		"another major path": {"v2.0.0", nil, "use one like v0.1.0"},
		"a change":           {"v0.1.0", func(t *testing.T, repo string) { write(t, repo, "lib.go", "package lib\n") }, "the tree is not clean:\n M lib.go"},
		"a new file":         {"v0.1.0", func(t *testing.T, repo string) { write(t, repo, "new.go", "package lib\n") }, "?? new.go"},
		"a larger tag": {"v0.1.0", func(t *testing.T, repo string) { requireGit(t, repo, "tag", "driver/v0.2.0") },
			"example.com/lib/driver has the tag driver/v0.2.0 already"},
		"an empty changelog": {"v0.1.0", func(t *testing.T, repo string) {
			write(t, repo, "CHANGELOG.md", "## [Unreleased]\n\n## [0.0.1] - 2026-01-01\n")
			requireGit(t, repo, "commit", "--quiet", "--all", "--message", "all: say nothing")
		}, "nothing under Unreleased"},
		"code that needs what is not published": {"v0.1.0", func(t *testing.T, repo string) {
			write(t, repo, "driver/d.go", "package driver\n\nimport _ \"example.com/lib/examples\"\n")
			requireGit(t, repo, "commit", "--quiet", "--all", "--message", "driver: import what is not released")
		}, "example.com/lib/driver"},
		"a replace of somebody else's module": {"v0.1.0", func(t *testing.T, repo string) {
			write(t, repo, "driver/go.mod", "module example.com/lib/driver\n\ngo 1.26.0\n\nreplace example.com/other => ../../other\n")
			requireGit(t, repo, "commit", "--quiet", "--all", "--message", "driver: replace")
		}, "replaces example.com/other: go install refuses"},
	} {
		t.Run(name, func(t *testing.T) {
			repo := smallRepo(t)
			if c.spoil != nil {
				c.spoil(t, repo)
			}
			before := requireGit(t, repo, "rev-parse", "HEAD")
			_, err := released(t, repo, "-version", c.version, "-write")
			require.ErrorContains(t, err, c.want)
			require.Equal(t, before, requireGit(t, repo, "rev-parse", "HEAD"), "a release that fails changes nothing")
			require.NotContains(t, requireGit(t, repo, "tag", "--list"), "v0.1.0")
		})
	}
}

func write(t *testing.T, repo, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(repo, filepath.FromSlash(name)), []byte(text), 0o600))
}
