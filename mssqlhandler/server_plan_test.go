package mssqlhandler_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

// declared is how a statement declares a variable.
var declared = regexp.MustCompile(`@(\w+) (n?varchar\(\w+\)|datetime2\(7\)|bigint)`)

// large is as many rows as a server that is slow at it still inserts in a moment. What a plan seeks in fifty thousand rows
// it seeks in a million.
const large = 50_000

// Read from the plan that the server used. A scan would be slow, and would lock what it reads on its way.
func TestCase050_KeysAreSoughtNotScannedFor(t *testing.T) {
	t.Parallel()
	s := onAnEmptyTable(t, mssqlhandler.WithHistory(time.Hour))
	const digits = "(VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9))"
	s.exec(t, fmt.Sprintf(`INSERT INTO $T (ServiceKey, CreationDate, Token, Holder, ExpiresAt, Fence)
		SELECT N'строка' + CONVERT(nvarchar(10), a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d), GETUTCDATE(), N'token', N'holder', '20990101', 1
		FROM %[1]s AS a(d), %[1]s AS b(d), %[1]s AS c(d), %[1]s AS e(d), %[1]s AS f(d) WHERE f.d < 5`, digits))
	s.exec(t, "INSERT INTO $H (ServiceKey, Token, ExpiresAt, EndedAt, Ending) SELECT ServiceKey, Token, ExpiresAt, CreationDate, 'released' FROM $T")
	// Something to be swept, and something that is too old, so that those statements are shown, too.
	s.exec(t, "UPDATE $T SET ExpiresAt = '20200101' WHERE ServiceKey IN (N'строка0', N'строка1')")
	s.exec(t, "UPDATE $H SET EndedAt = '20200101' WHERE ServiceKey IN (N'строка0', N'строка1')")
	var rows int
	s.get(t, &rows, "SELECT COUNT(*) FROM $T")
	require.Equal(t, large, rows)

	var version string
	s.get(t, &version, "SELECT @@VERSION")
	plan := "SET STATISTICS XML ON"
	scan := regexp.MustCompile(`PhysicalOp="(Clustered Index Scan|Index Scan|Table Scan)"`)
	seek := `PhysicalOp="Clustered Index Seek"`
	if strings.Contains(version, "Babelfish") {
		plan = "SET BABELFISH_STATISTICS PROFILE ON"
		scan, seek = regexp.MustCompile("Seq Scan"), "Index Cond: "
	}
	for op, send := range operations {
		stub, sent, _ := newStub(t, sqltest.Always(nil, number(102)), mssqlhandler.WithTable(s.table), mssqlhandler.WithHistory(time.Hour))
		require.Error(t, send(t.Context(), stub))
		for _, key := range []string{"строка77", "нет такой"} { // one that is held, and one that is free
			args := sent.Sent()[0].Args
			args[0] = mssql.NVarCharMax(key)
			got := s.plan(t, plan, sent.Sent()[0].Statement, args)
			require.NotRegexp(t, scan, got, op)
			require.Contains(t, got, seek, op)
		}
	}
	s.get(t, &rows, "SELECT COUNT(*) FROM $T")
	require.Less(t, rows, large, "the release did sweep")
	s.get(t, &rows, "SELECT COUNT(*) FROM $H WHERE EndedAt < '20210101'")
	require.Zero(t, rows, "and prune")
}

// A key of another type than its column's would be converted, column by column, before it is compared.
func TestCase050_VariablesHaveTheColumnsTypes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	types := make(map[string]string)
	rows, err := s.db.QueryContext(t.Context(), s.on(`SELECT LOWER(c.name), TYPE_NAME(c.user_type_id), c.max_length
		FROM sys.columns AS c WHERE c.object_id = OBJECT_ID(N'$T', N'U')`))
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var name, kind string
		var bytes int
		require.NoError(t, rows.Scan(&name, &kind, &bytes))
		switch {
		case bytes == -1:
			kind += "(max)"
		case kind == "nvarchar":
			kind += fmt.Sprintf("(%d)", bytes/2)
		}
		types[name] = kind
	}
	require.NoError(t, rows.Err())
	columns := map[string]string{"key": "servicekey", "token": "token", "supersedes": "token", "from": "servicekey", "last": "servicekey",
		"remembered": "servicekey", "holder": "holder", "floor": "fence", "until": "expiresat", "longOver": "expiresat", "now": "expiresat"}
	compared := 0
	for op, send := range operations {
		h, sent, _ := newStub(t, sqltest.Always(nil, number(102)))
		require.Error(t, send(t.Context(), h))
		statement := sent.Sent()[0].Statement
		require.NotRegexp(t, `(WHERE|AND|VALUES).*@p\d`, statement, "%s: arguments are nvarchar(max), whatever their length", op)
		for _, m := range declared.FindAllStringSubmatch(statement, -1) {
			column, ok := columns[m[1]]
			if !ok || m[1] == "last" && m[2] == "bigint" { // in grant that is a fence
				continue
			}
			require.Equal(t, types[column], strings.TrimSuffix(m[2], "(7)"), "%s: @%s", op, m[1])
			compared++
		}
	}
	require.Greater(t, compared, 15)
}

// plan runs a statement and returns what the server tells of how it did.
func (s *store) plan(t *testing.T, show, statement string, args []any) string {
	t.Helper()
	conn, err := s.db.Connx(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), show)
	require.NoError(t, err)
	defer func() {
		_, err := conn.ExecContext(t.Context(), strings.TrimSuffix(show, "ON")+"OFF")
		require.NoError(t, err)
	}()
	rows, err := conn.QueryContext(t.Context(), statement, args...)
	require.NoError(t, err)
	defer rows.Close()
	var told strings.Builder
	for more := true; more; more = rows.NextResultSet() {
		columns, err := rows.Columns()
		require.NoError(t, err)
		if len(columns) != 1 || !strings.Contains(strings.ToUpper(columns[0]), "PLAN") {
			for rows.Next() { // what the operation answers
			}
			continue
		}
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			told.WriteString(line + "\n")
		}
	}
	require.NoError(t, rows.Err())
	return told.String()
}
