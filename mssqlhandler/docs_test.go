package mssqlhandler_test

import (
	"context"
	"crypto/rand"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// documented are the statements of the page on SQL Server, in order, and then those of the page on operations that are T-SQL.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	for _, page := range []string{"sqlserver", "operations"} {
		text, err := os.ReadFile("../docs/" + page + ".md")
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```").FindAllStringSubmatch(string(text), -1) {
			if page == "sqlserver" || strings.Contains(m[1], "[dbo]") {
				blocks = append(blocks, m[1])
			}
		}
	}
	require.Greater(t, len(blocks), 10)
	return blocks
}

func TestDocumentedTablesAreThoseOfTheMigrations(t *testing.T) {
	script, err := migrations.Script(migrations.WithHistory())
	require.NoError(t, err)
	squeeze := func(s string) string {
		return strings.Join(strings.Fields(regexp.MustCompile(`--.*`).ReplaceAllString(s, "")), "")
	}
	tables := 0
	for _, block := range documented(t) {
		if strings.HasPrefix(block, "CREATE TABLE [dbo].[LokiLockingsHistory]") {
			for statement := range strings.SplitSeq(strings.TrimSpace(block), ";") {
				require.Contains(t, squeeze(script), squeeze(statement))
				tables++
			}
		}
	}
	require.Equal(t, 5, tables, "a table, its index, two columns of the other, and nothing after it")
}

// The tables are made as the page has them, and then each statement is run.
func TestServerDocumentedStatements(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var version string
	s.get(t, &version, "SELECT @@VERSION")
	table := mssqlname.Table{Schema: "dbo", Name: "loki_docs_" + strings.ToLower(rand.Text())}
	t.Cleanup(func() {
		for _, table := range []mssqlname.Table{table, table.History()} {
			_, err := s.db.ExecContext(context.WithoutCancel(t.Context()), "DROP TABLE "+table.Quoted())
			require.NoError(t, err)
		}
	})
	opts := []mssqlhandler.Option{mssqlhandler.WithTable(table.Name), mssqlhandler.WithHistory(time.Hour)}
	checked := false
	for _, block := range documented(t) {
		if strings.HasPrefix(block, "-- SQL Server only") && strings.Contains(version, "Babelfish") {
			continue
		}
		if !checked && !strings.HasPrefix(block, "CREATE TABLE") {
			checked = true
			require.NoError(t, mssqlhandler.Check(t.Context(), s.db, opts...), "the page has the tables as they are needed")
			h := mssqlhandler.New(s.db, opts...)
			c := s.Claim("k")
			c.Key = "invoice-batch"
			for range 2 {
				held, err := h.Lock(t.Context(), c)
				require.NoError(t, err)
				require.True(t, held)
				require.NoError(t, h.Release(t.Context(), c))
			}
		}
		s.runAll(t, strings.ReplaceAll(table.Fill(block), "[app]", "public"))
	}
	require.True(t, checked)
}

func TestServerDocumentedWayToTakeALock(t *testing.T) {
	t.Parallel()
	s := newStore(t, mssqlhandler.WithHistory(time.Hour))
	var ways []string
	for _, block := range documented(t) {
		if strings.Contains(block, "N'on call'") {
			ways = append(ways, block)
		}
	}
	require.Len(t, ways, 2, "without a history, and with one")
	for i, way := range ways {
		victim := s.Claim(strings.Repeat("k", i+1))
		sqltest.RequireTaken(t, s.Store, victim, strings.Contains(way, "History"), func() {
			s.runAll(t, strings.ReplaceAll(mssqlname.Table{Schema: "dbo", Name: s.table}.Fill(way), "invoice-batch", victim.Key))
		})
	}
}

// What the page asks the history tells what it is asked for.
func TestServerDocumentedQuestions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.table += "_questions" // of its own: other tests' releases prune theirs
	s.migrate(t)
	table := mssqlname.Table{Schema: "dbo", Name: s.table}
	row := func(key, holder, ending string, from, to time.Duration) {
		s.exec(t, "INSERT INTO $H ([ServiceKey], [Token], [Holder], [CreationDate], [ExpiresAt], [Fence], [EndedAt], [Ending]) "+
			"SELECT @p1, @p2, @p2, DATEADD(minute, -@p3, now), DATEADD(minute, 1 - @p4, now), 1, DATEADD(minute, -@p4, now), @p5 FROM (SELECT SYSUTCDATETIME() AS now) AS clock",
			s.Prefix+key, holder, int64(from.Minutes()), int64(to.Minutes()), ending)
	}
	const day = 24 * time.Hour
	row("well", "a", "released", 2*time.Hour, time.Hour)
	row("well", "b", "released", time.Hour, time.Minute)
	row("late", "a", "released", 3*day, 2*day)
	row("never", "a", "failed", 2*time.Hour, time.Hour)
	row("twice", "a", "released", 2*time.Hour, time.Hour)
	row("twice", "b", "superseded", 90*time.Minute, 80*time.Minute)
	row("well@2026-11-30", "a", "expired", 2*time.Hour, time.Hour)
	row("kept", "a", "released", 3*day, 2*day) // and once more today, whose row nobody has needed since
	for _, key := range []string{"kept", "crashed"} {
		c := s.Claim(key)
		c.Over = key == "kept"
		_, err := mssqlhandler.New(s.db, mssqlhandler.WithTable(s.table), mssqlhandler.WithHistory(time.Hour)).Lock(t.Context(), c)
		require.NoError(t, err)
		s.exec(t, "UPDATE $T SET ExpiresAt = DATEADD(second, -10, SYSUTCDATETIME()) WHERE ServiceKey = @p1", c.Key)
	}
	for question, want := range map[string][]string{
		"AS [Times]": {"never", "crashed"},
		"COUNT(CASE": {"late", "never", "crashed"},
		"AS [Other]": {"twice"},
	} {
		var told []string
		for _, block := range documented(t) {
			if !strings.Contains(block, question) {
				continue
			}
			rows, err := s.db.QueryxContext(t.Context(), table.Fill(block))
			require.NoError(t, err)
			defer rows.Close()
			for rows.Next() {
				row, err := rows.SliceScan()
				require.NoError(t, err)
				if key, ours := strings.CutPrefix(row[0].(string), s.Prefix); ours {
					told = append(told, key)
				}
			}
			require.NoError(t, rows.Err())
		}
		require.ElementsMatch(t, want, told, question)
	}
}

// runAll runs a batch to the end of its last answer.
func (s *store) runAll(t *testing.T, batch string) {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), batch)
	require.NoError(t, err, batch)
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() { // that it runs is what this is about
		}
	}
	require.NoError(t, rows.Err(), batch)
}
