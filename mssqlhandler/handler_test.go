package mssqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestGrantTellsInFull(t *testing.T) {
	h, s, _ := newStub(t, sqltest.Always(granted(9), nil))
	g, err := h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{Held: true, Fence: 9}, g)

	s.Answer = sqltest.Always(busy("other/2"), nil)
	g, err = h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{HeldBy: loki.Holder{
		ID:    "other/2",
		Since: time.UnixMicro(1_700_000_000_000_000).UTC(),
		Until: time.UnixMicro(1_700_000_009_000_000).UTC(),
		Left:  5 * time.Second,
	}}, g)

	s.Answer = sqltest.Always([]sqltest.ResultSet{answerOf(), answerOf(0, 7, nil, nil, nil, nil)}, nil)
	g, err = h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{}, g, "whoever held it was gone when the row was read")
}

func TestOneRoundTripEach(t *testing.T) {
	for op, send := range operations {
		h, s, _ := newStub(t, sqltest.Always(answers[op], nil))
		require.NoError(t, send(t.Context(), h), op)
		require.Len(t, s.Sent(), 1, op)
	}
}

// A time.Time would be sent as datetimeoffset, by the client's clock and in its zone. Durations are integers.
func TestCase056_NoTimeIsSent(t *testing.T) {
	for op, send := range operations {
		h, s, _ := newStub(t, sqltest.Always(nil, number(102)), mssqlhandler.WithLokiNetExpiry(time.Hour))
		require.Error(t, send(t.Context(), h))
		for _, arg := range s.Sent()[0].Args {
			switch arg.(type) {
			case mssql.NVarCharMax, int64:
			default:
				t.Errorf("%s sends a %s", op, reflect.TypeOf(arg))
			}
		}
	}
}

func TestExpiryIsSentInSecondsAndMillisecondsRoundedUp(t *testing.T) {
	for expiry, want := range map[time.Duration][2]int64{
		1:                                     {0, 1},
		time.Millisecond:                      {0, 1},
		time.Millisecond + 1:                  {0, 2},
		999*time.Millisecond + 1:              {1, 0},
		1500 * time.Millisecond:               {1, 500},
		30 * 24 * time.Hour:                   {30 * 24 * 3600, 0}, // more milliseconds than an int has
		loki.MaxExpiry - 1:                    {10 * 365 * 24 * 3600, 0},
		math.MaxInt32 * time.Second:           {math.MaxInt32, 0},
		math.MaxInt32*time.Second - 999999999: {math.MaxInt32 - 1, 1},
	} {
		c := claim
		c.Expiry = expiry
		h, s, _ := newStub(t, sqltest.Always(granted(1), nil))
		_, err := h.Lock(t.Context(), c)
		require.NoError(t, err)
		s.Answer = sqltest.Always(held(1), nil)
		_, err = h.Extend(t.Context(), c)
		require.NoError(t, err)
		sent := s.Sent()
		require.Equal(t, []any{want[0], want[1]}, sent[0].Args[3:5], "%v", expiry)
		require.Equal(t, []any{want[0], want[1]}, sent[1].Args[2:4], "%v", expiry)
	}
}

// sqlx chooses bind variables by the driver's name and knows only some of them: nothing here may depend on it.
func TestCase070_BindVariablesByDriverName(t *testing.T) {
	for _, name := range []string{"sqlserver", "azuresql", "mssql", "otelsql-sqlserver"} {
		for op, send := range operations {
			_, s, db := newStub(t, sqltest.Always(nil, number(102)))
			h := mssqlhandler.New(sqlx.NewDb(db.DB, name))
			require.Error(t, send(t.Context(), h))
			sent := s.Sent()[0]
			require.NotContains(t, sent.Statement, "?", "%s as %s", op, name)
			require.Len(t, sent.Args, len(parameters(sent.Statement)), "%s as %s", op, name)
		}
	}
}

func parameters(statement string) map[string]bool {
	found := make(map[string]bool)
	for _, p := range regexp.MustCompile(`@p\d+\b`).FindAllString(statement, -1) {
		found[p] = true
	}
	return found
}

// go-mssqldb under its old name counts placeholders of its own, and refuses arguments that it has not counted.
func TestCase070_OldDriverName(t *testing.T) {
	old, err := sql.Open("mssql", "server=none")
	require.NoError(t, err)
	defer old.Close()
	for op, send := range operations {
		_, s, db := newStub(t, sqltest.Always(nil, number(102)))
		db.DB = sql.OpenDB(underDriver{s, old.Driver()})
		t.Cleanup(func() { _ = db.Close() })
		require.Error(t, send(t.Context(), mssqlhandler.New(db, mssqlhandler.WithTable("a@p"))))
		sent := s.Sent()[0]
		require.Contains(t, sent.Statement, "[a@p]", "what is filled in is not a placeholder")
		require.Empty(t, parameters(sent.Statement), op)
		require.Contains(t, sent.Statement, "?1", op)
	}
}

// underDriver is a stub that says it belongs to another driver.
type underDriver struct {
	*sqltest.Stub
	driver driver.Driver
}

func (u underDriver) Driver() driver.Driver { return u.driver }

func TestStatementsNameTheChosenTable(t *testing.T) {
	for op, send := range operations {
		h, s, _ := newStub(t, sqltest.Always(nil, number(102)), mssqlhandler.WithSchema("it's"), mssqlhandler.WithTable("a]b"))
		require.ErrorContains(t, send(t.Context(), h), "[it's].[a]]b]")
		statement := s.Sent()[0].Statement
		require.Contains(t, statement, "[it's].[a]]b]", op)
		require.NotContains(t, statement, "LokiLockings", op)
		require.NotContains(t, statement, "--", "%s: comments are for readers, not for the wire", op)
	}
}

func TestKeysThatFitAreSent(t *testing.T) {
	for _, key := range []string{" a", "a\t", "Ä", strings.Repeat("k", loki.MaxKeyLength), strings.Repeat("𐍈", loki.MaxKeyLength/2), "it's", "--", "%_["} {
		c := claim
		c.Key = key
		h, s, _ := newStub(t, sqltest.Always(granted(1), nil))
		_, err := h.Lock(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, mssql.NVarCharMax(key), s.Sent()[0].Args[0], "verbatim")
	}
}

// What the server would take for another text, or cut, is refused before it is sent.
func TestTextsThatWouldBecomeAnotherAreRefused(t *testing.T) {
	with := func(change func(*loki.Claim)) loki.Claim {
		c := claim
		change(&c)
		return c
	}
	for says, c := range map[string]loki.Claim{
		`key "a " ends in a blank`:         with(func(c *loki.Claim) { c.Key = "a " }),
		`token "a " ends in a blank`:       with(func(c *loki.Claim) { c.Token = "a " }),
		`superseded token "a " ends in a`:  with(func(c *loki.Claim) { c.Supersedes = "a " }),
		`key "fence\x1f" is the key under`: with(func(c *loki.Claim) { c.Key = "fence\x1f" }),
		"key is longer than the 400":       with(func(c *loki.Claim) { c.Key = strings.Repeat("𐍈", loki.MaxKeyLength/2) + "k" }),
		"token is longer than the 128":     with(func(c *loki.Claim) { c.Token = strings.Repeat("t", 129) }),
	} {
		h, s, _ := newStub(t, sqltest.Always(granted(1), nil))
		_, err := h.Grant(t.Context(), c)
		require.ErrorContains(t, err, says)
		require.False(t, loki.IsUnavailable(err))
		require.ErrorContains(t, h.Release(t.Context(), c), says)
		require.Empty(t, s.Sent())
	}
}

// Opening is lazy: a server that refuses is an unavailable store at the first call, and nothing is left of the handler.
func TestCase030_NoHandleLeaksAtBuildTime(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 100 {
		h, err := mssqlhandler.Open("sqlserver://sa:x@127.0.0.1:1?dial+timeout=5")
		require.NoError(t, err)
		_, err = h.Lock(t.Context(), claim)
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.NoError(t, h.Close())
		_, err = h.Lock(t.Context(), claim)
		require.ErrorContains(t, err, "database is closed")
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 5*time.Second, 10*time.Millisecond)
}

func TestCloseLeavesTheCallersDatabaseOpen(t *testing.T) {
	h, _, db := newStub(t, sqltest.Always(granted(1), nil))
	require.NoError(t, h.Close())
	require.NoError(t, db.Ping())
	_, err := h.Lock(t.Context(), claim)
	require.NoError(t, err)
}

// A failed call gives its connection back.
func TestCase029_NoConnectionLeaks(t *testing.T) {
	h, s, db := newStub(t, sqltest.Always(busy("them"), nil))
	db.SetMaxOpenConns(2)
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		switch i % 3 {
		case 0:
			s.Answer = sqltest.Always(busy("them"), nil)
		case 1:
			s.Answer = sqltest.Always(nil, number(229))
		case 2:
			s.Answer = sqltest.Always([]sqltest.ResultSet{{Columns: []string{"Other"}, Rows: [][]driver.Value{{int64(1)}}}}, nil)
		}
		_, err := h.Lock(ctx, claim)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.Zero(t, db.Stats().InUse)
}
