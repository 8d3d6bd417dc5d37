package mssqlhandler_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/migrations"
)

// The columns that the statements use are those of the table that the migrations make.
func TestStatementsAndMigrationsAgreeOnColumns(t *testing.T) {
	made := columns(t, migrations.Files, "*.up.sql")
	used := columns(t, os.DirFS("sql"), "*.sql")
	answered := []string{"Held", "Since", "Left", "Next", "Over", "User", "Permission", "Granted", "ImplicitTransactions", "ReadOnly"} // names of the answer alone
	for _, name := range append(answered, "dbo", "LokiLockings", "LokiLockingsHistory") {
		delete(made, name)
		delete(used, name)
	}
	kinds := []string{"varchar", "datetime", "nvarchar", "max", "datetime2", "bigint", "PK_LokiLockings", "PK_LokiLockingsHistory"}
	for _, name := range append(kinds, "IX_ServiceKey", "Id") {
		delete(made, name)
	}
	require.Equal(t, made, used)
}

func columns(t *testing.T, files fs.FS, pattern string) map[string]bool {
	t.Helper()
	names, err := fs.Glob(files, pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	found := make(map[string]bool)
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if code := strings.TrimSpace(line); strings.HasPrefix(code, "--") && !strings.HasPrefix(code, "--+") {
				continue
			}
			for _, m := range regexp.MustCompile(`\[(\w+)\]`).FindAllStringSubmatch(line, -1) {
				found[m[1]] = true
			}
		}
	}
	return found
}
