package postgreshandler_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// documented are the statements of the page on PostgreSQL, in order, and then those of the page on operations that are for it.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	for _, page := range []string{"postgres", "operations"} {
		text, err := os.ReadFile("../docs/" + page + ".md")
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
			if page == "postgres" || strings.Contains(m[1], "loki_lockings") {
				blocks = append(blocks, m[1])
			}
		}
	}
	require.Greater(t, len(blocks), 10)
	return blocks
}

// taking are the documented statements that take a lock from its holder: without a history, and with one.
func taking(t *testing.T) (blocks []string) {
	t.Helper()
	for _, block := range documented(t) {
		if strings.Contains(block, "'on call'") {
			blocks = append(blocks, block)
		}
	}
	require.Len(t, blocks, 2)
	return blocks
}

// quoted is a statement of the page, or of a migration, as it reads for a store's tables.
func (s *store) quoted(statement string) string {
	return regexp.MustCompile(`(?m)\b(INTO|FROM|JOIN|UPDATE|TABLE|ON) (loki_lockings\w*)`).ReplaceAllString(statement, `$1 "`+s.schema+`"."$2"`)
}

func TestDocumentedTablesAreThoseOfTheMigrations(t *testing.T) {
	script, err := migrations.Script(migrations.WithHistory())
	require.NoError(t, err)
	squeeze := func(s string) string {
		s = regexp.MustCompile(`--.*`).ReplaceAllString(s, "")
		return strings.Join(strings.Fields(strings.NewReplacer(`"public".`, "", "IF NOT EXISTS", "", `"`, "").Replace(s)), " ")
	}
	tables := 0
	for _, block := range documented(t) {
		if strings.HasPrefix(block, "CREATE TABLE") {
			for statement := range strings.SplitSeq(strings.TrimSpace(block), ";\n") {
				require.Contains(t, squeeze(script), strings.TrimSuffix(squeeze(statement), ";"))
				tables++
			}
		}
	}
	require.Equal(t, 4, tables, "two tables, an index, and two columns")
}

// The tables are made as the page has them, and then each statement is run.
func TestServerDocumentedStatements(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	s.exec(t, "DROP TABLE $T, $H")
	checked := false
	for _, block := range documented(t) {
		if !checked && !strings.HasPrefix(block, "CREATE TABLE") {
			checked = true
			require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...), "the page has the tables as they are needed")
			c := s.Claim("invoice-batch")
			for range 2 {
				s.MustGrant(t, c)
				s.MustRelease(t, c)
			}
		}
		statement := strings.ReplaceAll(s.quoted(block), "TO app;", "TO PUBLIC;")
		statement = strings.ReplaceAll(statement, "SCHEMA public", `SCHEMA "`+s.schema+`"`)
		statement = strings.ReplaceAll(statement, "DATABASE app", "DATABASE postgres")
		require.NotRegexp(t, `[^".]\bloki_lockings(_history)?\b[^_"]`, regexp.MustCompile(`INDEX \w+`).ReplaceAllString(statement, ""), "it is about the tables of this test")
		s.exec(t, statement)
	}
	require.True(t, checked)
}

func TestServerDocumentedWayToTakeALock(t *testing.T) {
	t.Parallel()
	for _, way := range taking(t) {
		s := newStore(t, postgreshandler.WithHistory(time.Hour))
		sqltest.RequireTaken(t, s.Store, s.Claim("invoice-batch"), strings.Contains(way, "_history"), func() { s.exec(t, s.quoted(way)) })
	}
}

// What the page asks the history tells what it is asked for.
func TestServerDocumentedQuestions(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	row := func(key, holder, outcome string, from, to time.Duration, fence int64) {
		s.exec(t, "INSERT INTO $H VALUES ($1, now() - $2 * interval '1 second', 't ' || $3, $3, $4, now() - $5 * interval '1 second', $6)",
			key, int64(from/time.Second), holder, fence, int64(to/time.Second), outcome)
	}
	const day = 24 * time.Hour
	row("well", "a", "released", 2*time.Hour, time.Hour, 1)
	row("well", "b", "released", time.Hour, time.Minute, 2)
	row("late", "a", "released", 3*day, 2*day, 1)
	row("never", "a", "failed", 2*time.Hour, time.Hour, 1)
	row("twice", "a", "released", 2*time.Hour, time.Hour, 1)
	row("twice", "b", "superseded", 90*time.Minute, 80*time.Minute, 2)
	row("well@2026-11-30", "a", "expired", 2*time.Hour, time.Hour, 1)
	row("kept", "a", "released", 3*day, 2*day, 1) // and once more today, whose row nobody has needed since
	for _, key := range []string{"kept", "crashed"} {
		c := s.Claim(key)
		c.Over = key == "kept"
		s.MustGrant(t, c)
		s.End(t, key)
	}
	for question, want := range map[string][]string{
		"AS times":   {"never", "crashed"},
		"FILTER":     {"late", "never", "crashed"},
		"AS other":   {"twice"},
		"LIMIT 20":   nil,
		"LIMIT 3":    nil,
		"2026-03-29": nil,
	} {
		var told []string
		for _, block := range documented(t) {
			if !strings.Contains(block, question) {
				continue
			}
			rows, err := s.db.QueryContext(t.Context(), s.quoted(block))
			require.NoError(t, err)
			defer rows.Close()
			columns, err := rows.Columns()
			require.NoError(t, err)
			for rows.Next() {
				dest := make([]any, len(columns))
				var key string
				dest[0] = &key
				for i := range dest[1:] {
					dest[i+1] = new(any)
				}
				require.NoError(t, rows.Scan(dest...))
				told = append(told, key)
			}
			require.NoError(t, rows.Err())
		}
		require.ElementsMatch(t, want, told, question)
	}
}
