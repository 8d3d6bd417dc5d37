package mssqlhandler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

// between sends the batch of one operation with put before the first place in it that begins with at, and returns the
// first two values that it answers.
func (s *store) between(t *testing.T, at, put string, operation func(*mssqlhandler.Handler) error) (values [2]any, err error) {
	t.Helper()
	h, stub, _ := newStub(t, sqltest.Always(nil, number(102)), mssqlhandler.WithTable(s.table))
	require.Error(t, operation(h))
	batch := stub.Sent()[0]
	require.Contains(t, batch.Statement, s.on(at))
	statement := strings.Replace(batch.Statement, s.on(at), s.on(put)+"\n"+s.on(at), 1)
	rows, err := s.db.QueryContext(t.Context(), statement, batch.Args...)
	if err != nil {
		return values, err
	}
	defer rows.Close()
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			columns, err := rows.Columns()
			require.NoError(t, err)
			dest := []any{&values[0], &values[1]}
			for len(dest) < len(columns) {
				dest = append(dest, new(any))
			}
			require.NoError(t, rows.Scan(dest[:len(columns)]...))
		}
	}
	return values, rows.Err()
}

func TestServerBetweenTheStatements(t *testing.T) {
	t.Parallel()
	s := onAnEmptyTable(t)
	grant := func(c loki.Claim) func(*mssqlhandler.Handler) error {
		return func(h *mssqlhandler.Handler) error { _, err := h.Grant(t.Context(), c); return err }
	}
	release := func(c loki.Claim) func(*mssqlhandler.Handler) error {
		return func(h *mssqlhandler.Handler) error { return h.Release(t.Context(), c) }
	}
	const inserted = "IF @inserted = 1"

	t.Run("cut off, and sent again", func(t *testing.T) {
		a, b := s.Claim("cut off"), s.Claim("cut off")
		a.Fence = time.Now().Add(time.Hour).UnixMicro()
		fence := s.MustGrant(t, a)
		require.NoError(t, s.Release(t.Context(), a))
		_, err := s.between(t, inserted, "IF @inserted = 1 THROW 50001, N'cut off', 1;", grant(b))
		require.ErrorContains(t, err, "cut off")
		require.Equal(t, 1, s.Count(t), "the row is there")
		require.Greater(t, s.MustGrant(t, b), fence, "and has a fence that is larger than those before")
	})
	s.exec(t, "DELETE FROM $T")

	// A fence that was drawn may be smaller than others by the time that the key is another's.
	for by, row := range map[string]string{"INSERT": "", "UPDATE": "expired"} {
		t.Run("taken after the "+by, func(t *testing.T) {
			c := s.Claim("taken by " + by)
			if row != "" {
				s.MustGrant(t, s.Claim("taken by "+by))
				s.End(t, c.Key)
			}
			answer, err := s.between(t, inserted, "UPDATE $T SET [Token] = N'another''s' WHERE [ServiceKey] = @key;\n"+
				"INSERT INTO $T ([ServiceKey], [CreationDate], [Token], [ExpiresAt], [Fence]) VALUES (@remembered, @now, @remembered, @now, @fence + 10);", grant(c))
			require.NoError(t, err)
			require.EqualValues(t, 0, answer[0], "the claim does not hold")
		})
		s.exec(t, "DELETE FROM $T")
	}

	t.Run("renewed under a release", func(t *testing.T) {
		d, e := s.Claim("renewed"), s.Claim("renewed")
		s.MustGrant(t, d)
		hour := time.Now().Add(time.Hour).UnixMicro()
		_, err := s.between(t, "DELETE FROM $T", "UPDATE $T SET [Fence] = @clock + 7200000000 WHERE [ServiceKey] = @key AND [Fence] < @clock + 3600000000;", release(d))
		require.NoError(t, err)
		require.Zero(t, s.Count(t))
		require.Greater(t, s.MustGrant(t, e), hour)
	})
	s.exec(t, "DELETE FROM $T")

	// An INSERT that has begun may have drawn its fence within the last millisecond.
	for age, remembered := range map[string]int{"500": 1, "1500": 0} {
		t.Run("released after "+age+" µs", func(t *testing.T) {
			f := s.Claim("young")
			s.MustGrant(t, f)
			_, err := s.between(t, "BEGIN TRY", "UPDATE $T SET [Fence] = @clock - "+age+" WHERE [ServiceKey] = @key;", release(f))
			require.NoError(t, err)
			var rows int
			s.get(t, &rows, "SELECT COUNT(*) FROM $T")
			require.Equal(t, remembered, rows)
		})
		s.exec(t, "DELETE FROM $T")
	}
}
