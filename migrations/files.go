package migrations

import (
	"embed"
	"io/fs"
	"strings"
)

// Files are the numbered migrations, for golang-migrate and for people: NNNNNN_name.up.sql and NNNNNN_name.down.sql.
// They name the table [dbo].[LokiLockings]; [Script] has them for another name.
//
//go:embed 0*.sql
var Files embed.FS

// Script returns the up migrations for sqlcmd or a query window, in order and with "GO" between them: what to hand to
// whoever may change the schema if the application's login may not.
func Script(opts ...Option) (string, error) {
	chosen, err := choose(opts)
	if err != nil {
		return "", err
	}
	ups, err := upMigrations(chosen)
	if err != nil {
		return "", err
	}
	return strings.Join(ups, "GO\n") + "GO\n", nil
}

// historyUp is the migration that only a history needs.
const historyUp = "000003_history.up.sql"

// upMigrations are the statements that make what was chosen, in order.
func upMigrations(chosen settings) ([]string, error) {
	names, err := fs.Glob(Files, "*.up.sql") // sorted
	if err != nil {
		return nil, err
	}
	var ups []string
	for _, name := range names {
		if name == historyUp && !chosen.history {
			continue
		}
		text, err := Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		ups = append(ups, chosen.table.Fill(string(text)))
	}
	return ups, nil
}
