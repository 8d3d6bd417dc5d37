package migrations

import (
	"embed"
	"io/fs"
	"strings"
)

// Files are the numbered migrations, for golang-migrate and for people: NNNNNN_name.up.sql and NNNNNN_name.down.sql.
// They name the table "public"."loki_lockings"; [Script] has them for another name.
//
//go:embed 0*.sql
var Files embed.FS

// historyUp makes the table that only handlers with a history need.
const historyUp = "000002_history.up.sql"

// Script returns the up migrations for psql, in order and in one transaction: what to hand to whoever may change the
// schema if the application's login may not.
func Script(opts ...Option) (string, error) {
	s, err := choose(opts)
	if err != nil {
		return "", err
	}
	ups, err := s.upMigrations()
	if err != nil {
		return "", err
	}
	return "BEGIN;\n" + strings.Join(ups, "") + "COMMIT;\n", nil
}

// upMigrations are the statements that make the tables, in order.
func (s settings) upMigrations() ([]string, error) {
	names, err := fs.Glob(Files, "*.up.sql") // sorted
	if err != nil {
		return nil, err
	}
	var ups []string
	for _, name := range names {
		if name == historyUp && !s.history {
			continue
		}
		text, err := Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		ups = append(ups, s.table.Fill(string(text)))
	}
	return ups, nil
}
