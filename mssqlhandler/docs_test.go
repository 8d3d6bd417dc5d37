package mssqlhandler_test

// This file holds docs/sqlserver.md to what it says: every statement in it runs, and its tables are those that are needed.

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
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// documented are the statements of the page, in order.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/sqlserver.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, m[1])
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
	require.Equal(t, 3, tables, "a table, its index, and nothing after it")
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
			c := s.claim("k")
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
