package postgreshandler_test

import (
	"io/fs"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// answers are what a server answers to each operation.
var answers = map[string][]sqltest.ResultSet{
	"lock": granted(1), "grant": granted(1), "extend": sqltest.Row(true), "release": sqltest.Row("", true),
	"inspect": sqltest.Row("h", int64(1), int64(2), int64(3)),
}

func TestOneRoundTripEach(t *testing.T) {
	for op, send := range operations {
		h, s := newStub(t, sqltest.Always(answers[op], nil))
		require.NoError(t, send(t.Context(), h), op)
		require.Len(t, s.Sent(), 1, op)
	}
}

// A time.Time would be by the client's clock. Durations are integers.
func TestCase056_NoTimeIsSent(t *testing.T) {
	for op, send := range operations {
		h, s := newStub(t, sqltest.Always(answers[op], nil), postgreshandler.WithHistory(time.Hour))
		require.NoError(t, send(t.Context(), h))
		sent := s.Sent()[0]
		require.NotContains(t, sent.Statement, "now()", "%s: that is when a transaction began", op)
		for _, arg := range sent.Args {
			switch arg.(type) {
			case string, int64, bool:
			default:
				t.Errorf("%s sends a %s", op, reflect.TypeOf(arg))
			}
		}
	}
}

// Each argument is used, and has a type of its own in the statement: without one some of pgx's modes, and the server, guess.
func TestEveryArgumentHasAType(t *testing.T) {
	for op, send := range operations {
		for _, opts := range [][]postgreshandler.Option{nil, {postgreshandler.WithHistory(time.Hour)}} {
			h, s := newStub(t, sqltest.Always(answers[op], nil), opts...)
			require.NoError(t, send(t.Context(), h))
			sent := s.Sent()[0]
			used := make(map[string]bool)
			for _, p := range regexp.MustCompile(`\$\d(::\w+)?`).FindAllString(sent.Statement, -1) {
				require.Contains(t, p, "::", "%s: %s", op, sent.Statement)
				used[p[:2]] = true
			}
			require.Len(t, used, len(sent.Args), op)
		}
	}
}

func TestExpiryIsSentInMillisecondsRoundedUp(t *testing.T) {
	for expiry, want := range map[time.Duration]int64{
		1:                           1,
		time.Millisecond:            1,
		time.Millisecond + 1:        2,
		1500 * time.Millisecond:     1500,
		loki.MaxExpiry - 1:          loki.MaxExpiry.Milliseconds(),
		math.MaxInt32 * time.Second: math.MaxInt32 * 1000,
	} {
		c := claim
		c.Expiry = expiry
		h, s := newStub(t, sqltest.Always(granted(1), nil))
		_, err := h.Lock(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, want, s.Sent()[0].Args[3], "%v", expiry)
		h, s = newStub(t, sqltest.Always(answers["extend"], nil))
		_, err = h.Extend(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, want, s.Sent()[0].Args[2], "%v", expiry)
	}
}

func TestStatementsNameTheChosenTable(t *testing.T) {
	for op, send := range operations {
		h, s := newStub(t, sqltest.Always(nil, code("42601")), postgreshandler.WithSchema("it's"), postgreshandler.WithTable(`a"b`), postgreshandler.WithHistory(time.Hour))
		require.ErrorContains(t, send(t.Context(), h), `"it's"."a""b"`)
		statement := s.Sent()[0].Statement
		require.Contains(t, statement, `"it's"."a""b"`, op)
		require.NotContains(t, statement, "loki_lockings", op)
		require.NotContains(t, statement, "--", "%s: comments are for readers, not for the wire", op)
	}
}

// The columns that the statements use are those of the tables that the migrations make.
func TestStatementsAndMigrationsAgreeOnColumns(t *testing.T) {
	made := regexp.MustCompile(`(?m)^    (\w+) (?:text|timestamptz|bigint)`)
	columns := make(map[string]bool)
	for _, text := range texts(t, migrations.Files, "*.up.sql") {
		for _, m := range made.FindAllStringSubmatch(text, -1) {
			columns[m[1]] = true
		}
	}
	require.Len(t, columns, 8)
	used := make(map[string]bool)
	for _, text := range texts(t, os.DirFS("sql"), "*.sql") {
		for _, m := range regexp.MustCompile(`\b(?:l|h|excluded)\.(\w+)`).FindAllStringSubmatch(text, -1) {
			if m[1] != "ctid" {
				used[m[1]] = true
			}
		}
		if _, list, ok := strings.Cut(text, "history\" ("); ok { // what is inserted
			list, _, _ = strings.Cut(list, ")")
			for name := range strings.SplitSeq(list, ", ") {
				used[name] = true
			}
		}
	}
	require.Equal(t, columns, used)
}

func texts(t *testing.T, files fs.FS, pattern string) (all []string) {
	t.Helper()
	names, err := fs.Glob(files, pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		all = append(all, string(text))
	}
	return all
}

func TestTextsThatDoNotFitAreRefused(t *testing.T) {
	key, token := claim, claim
	key.Key = strings.Repeat("𐍈", loki.MaxKeyLength/2) + "k"
	token.Token = strings.Repeat("t", 129)
	for says, c := range map[string]loki.Claim{"key is longer than the 400": key, "token is longer than the 128": token} {
		h, s := newStub(t, sqltest.Always(granted(1), nil))
		_, err := h.Grant(t.Context(), c)
		require.ErrorContains(t, err, says)
		require.False(t, loki.IsUnavailable(err))
		require.Empty(t, s.Sent())
	}
}
