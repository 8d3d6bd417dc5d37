package loki_test

import (
	"bufio"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
)

// files returns the content of every file of the repository whose name ends in ext.
func files(t *testing.T, ext string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir // what git and tools keep
		}
		if d.IsDir() || filepath.Ext(path) != ext {
			return nil
		}
		content, err := os.ReadFile(path)
		found[filepath.ToSlash(path)] = string(content)
		return err
	}))
	return found
}

var (
	goBlock     = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```")
	anyBlock    = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	commentLine = regexp.MustCompile(`(?m)^\s*//.*$`)
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading     = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// squeeze makes code independent of its indentation.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// What a page shows as Go stands in a file that is compiled. The program of the README is run instead.
func TestDocs_CodeCompiles(t *testing.T) {
	var code strings.Builder
	for _, file := range files(t, ".go") {
		code.WriteString(commentLine.ReplaceAllString(file, "")) // a comment is not compiled
	}
	compiled, blocks := squeeze(code.String()), 0
	for page, text := range files(t, ".md") {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			blocks++
			if strings.HasPrefix(block[1], "package main\n") {
				require.Equal(t, "README.md", page, "a whole program, which nothing compiles")
				continue
			}
			if !strings.Contains(compiled, squeeze(commentLine.ReplaceAllString(block[1], ""))) {
				t.Errorf("%s shows code that is compiled nowhere:\n%s", page, block[1])
			}
		}
	}
	require.Greater(t, blocks, 5)
}

// The program of the README does what the README says: of two processes one runs the job, and SIGTERM ends it.
func TestDocs_ReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	program := goBlock.FindStringSubmatch(files(t, ".md")["README.md"])[1]
	require.True(t, strings.HasPrefix(program, "package main\n"), "the first block of the README is the program")
	server, dir := redistest.Start(t), t.TempDir()
	require.Contains(t, program, "localhost:6379")
	program = strings.ReplaceAll(program, "localhost:6379", server.Addr())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	binary := filepath.Join(dir, "program")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", binary, filepath.Join(dir, "main.go")).CombinedOutput()
	require.NoError(t, err, "%s", out)

	first := exec.CommandContext(t.Context(), binary)
	pipe, err := first.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	log := bufio.NewScanner(pipe)
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "closing the day")

	second, err := exec.CommandContext(t.Context(), binary).CombinedOutput()
	require.NoError(t, err, "%s", second)
	require.Contains(t, string(second), "skipped: ")
	require.NotContains(t, string(second), "closing the day")

	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	require.True(t, log.Scan())
	require.Contains(t, log.Text(), "failed: terminated")
	require.NoError(t, first.Wait())
	require.Zero(t, server.Client(t).Exists(t.Context(), "loki:{invoice-batch}").Val(), "the lock is released")
}

// A link leads to a file of the repository, and to a heading of it. Links to other sites are not followed.
func TestDocs_LinksLeadSomewhere(t *testing.T) {
	pages := files(t, ".md")
	anchors := map[string]map[string]bool{}
	for page, text := range pages {
		anchors[page] = map[string]bool{}
		for _, m := range heading.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
			anchors[page][slug(m[1])] = true
		}
	}
	links := 0
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			to := page
			if target != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s links to %s, where there is no such heading", page, m[1])
			}
		}
	}
	require.Greater(t, links, 50)
}

// slug is the anchor that GitHub gives to a heading.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestDocs_IndexHasEveryPage(t *testing.T) {
	pages := files(t, ".md")
	for page := range pages {
		if name, ok := strings.CutPrefix(page, "docs/"); ok && name != "README.md" {
			require.Contains(t, pages["docs/README.md"], "]("+name+")")
		}
	}
}

// Strangers read a short front page: what does not fit is in docs/.
func TestDocs_ReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, strings.Count(files(t, ".md")["README.md"], "\n"), 150)
}
