package loki_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the README shows as Go is code that is compiled somewhere in the repository, so that it cannot go stale.
func TestReadmeShowsCodeThatCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := os.ReadFile(path)
		code.Write(comments.ReplaceAll(file, nil)) // a comment is not compiled
		return err
	}))
	compiled := squeeze(code.String())
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		if !strings.Contains(compiled, squeeze(comments.ReplaceAllString(block[1], ""))) {
			t.Errorf("the README shows code that is nowhere compiled:\n%s", block[1])
		}
	}
}

var comments = regexp.MustCompile(`(?m)^\s*//.*$`)

// squeeze makes code independent of its indentation.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }
