package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// copyOfTheTree is a repository with one commit: the working tree as it is now, and something to say about it.
func copyOfTheTree(t *testing.T) string {
	t.Helper()
	repo := t.TempDir()
	require.NoError(t, os.CopyFS(repo, source{os.DirFS("../..")}))
	changelog, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)
	write(t, repo, "CHANGELOG.md", strings.Replace(string(changelog), unreleasedHeading, unreleasedHeading+"\n- What is new.\n", 1))
	initRepo(t, repo)
	return repo
}

// source is a tree without what git and tools keep in it.
type source struct{ fs.FS }

func (s source) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(s.FS, name)
	return slices.DeleteFunc(all, func(entry fs.DirEntry) bool { return entry.Name() == ".git" || entry.Name() == ".bin" }), err
}

// What a user runs after a release works in an empty folder: go get without a version, and a program.
func TestEveryReleasedModuleCanBeInstalled(t *testing.T) {
	r, err := prepare(t.Context(), copyOfTheTree(t), "v0.1.0", t.TempDir(), time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, r.released)
	for _, m := range r.released {
		t.Run(m.path, func(t *testing.T) {
			name := m.dir
			if name == "" {
				name = "root"
			}
			program, err := os.ReadFile(filepath.Join("testdata", "programs", filepath.FromSlash(name), "main.go"))
			require.NoError(t, err, "every released module needs a program that uses it as a user would")
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), program, 0o600))
			for _, args := range [][]string{{"mod", "init", "example.com/user"}, {"get", m.path}, {"run", "."}} {
				out, err := r.proxy.command(t.Context(), dir, args...)
				require.NoError(t, err)
				t.Logf("go %s\n%s", strings.Join(args, " "), out)
			}
			f, err := readGoMod(filepath.Join(dir, "go.mod"))
			require.NoError(t, err)
			for _, req := range f.Require {
				if strings.HasPrefix(req.Mod.Path, "github.com/lokilock/") {
					require.Equal(t, "v0.1.0", req.Mod.Version, req.Mod.Path)
				}
			}
		})
	}
}

// What a replace leads to in the tree is not there for a user: without the commit that a release makes, the test above
// would fail.
func TestAModuleThatNeedsItsReplaceCannotBeInstalled(t *testing.T) {
	repo, user := smallRepo(t), t.TempDir()
	modules, err := findModules(repo)
	require.NoError(t, err)
	p, err := newProxy(t.Context(), t.TempDir())
	require.NoError(t, err)
	p.goproxy = "off"
	for _, m := range modules {
		require.NoError(t, p.publish(repo, "HEAD", m, "v0.1.0", time.Now()))
	}
	require.NoError(t, p.tryModule(t.Context(), user, modules[0], "v0.1.0"), "the root requires no neighbour")
	require.ErrorContains(t, p.tryModule(t.Context(), user, modules[1], "v0.1.0"), "downloading example.com/lib v0.0.0-00010101000000-000000000000\n")
}
