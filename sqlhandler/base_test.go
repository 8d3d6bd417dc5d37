package sqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

func TestGrantTellsInFull(t *testing.T) {
	h, s := newStub(t, first(0, nil, []driver.Value{int64(1), int64(7), nil, nil, nil, nil}))
	g, err := h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{Held: true, Fence: 7}, g)
	require.Equal(t, []call{{"grant", []any{"key", "token", "older", "", int64(0)}}}, s.sent())

	s.answer = first(0, nil, []driver.Value{int64(0), nil, "them", int64(1_000_000), int64(3_000_000), int64(2_000_000), "more than was asked for"})
	g, err = h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{HeldBy: loki.Holder{ID: "them", Since: time.Unix(1, 0).UTC(), Until: time.Unix(3, 0).UTC(), Left: 2 * time.Second}}, g)

	s.answer = first(0, nil, []driver.Value{int64(0), nil, "them", nil, nil, int64(-5)})
	g, err = h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{HeldBy: loki.Holder{ID: "them"}}, g, "what the store does not know is zero")
}

// A claim that supersedes itself would be replaced by itself.
func TestNoClaimSupersedesItself(t *testing.T) {
	h, s := newStub(t, first(0, nil, []driver.Value{int64(1), int64(7), nil, nil, nil, nil}))
	c := claim
	c.Supersedes = c.Token
	_, err := h.Lock(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, s.sent()[0].args[2])
}

// Each release goes on sweeping where the last one ended.
func TestReleasesWalkTheTable(t *testing.T) {
	h, s := newStub(t, nil)
	froms := []string{"", "c", "x", "", ""}
	s.answer = func(call int) ([][]driver.Value, error) {
		if call == 3 {
			return nil, nil // a dialect that does not sweep, or no row this time
		}
		return [][]driver.Value{{froms[call+1], int64(1)}}, nil
	}
	for i := range 3 {
		require.NoError(t, h.Release(t.Context(), claim))
		require.Equal(t, froms[i], s.sent()[i].args[3])
	}
	require.NoError(t, h.Release(t.Context(), claim))
}

// What a release found is certain only if its statement was sent once.
func TestReleaseReportsWhatItFound(t *testing.T) {
	found := []driver.Value{"", int64(1)}
	expired := []driver.Value{"", int64(0)}
	for name, c := range map[string]struct {
		answer   func(int) ([][]driver.Value, error)
		repeated bool
		held     bool
	}{
		"held":                             {answer: first(0, nil, found), held: true},
		"expired":                          {answer: first(0, nil, expired)},
		"not there":                        {answer: first(0, nil)},
		"not there, after a lost reply":    {answer: first(1, errBroken), held: true},
		"expired, after a lost reply":      {answer: first(1, io.EOF, expired), held: true},
		"not there, after another attempt": {answer: first(0, nil), repeated: true, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := newStub(t, c.answer)
			claim := claim
			claim.Repeated = c.repeated
			held, err := h.ReleaseHeld(t.Context(), claim)
			require.NoError(t, err)
			require.Equal(t, c.held, held)
		})
	}
	h, _ := newStub(t, first(100, errDown, found))
	held, err := h.ReleaseHeld(t.Context(), claim)
	require.ErrorIs(t, err, errDown)
	require.False(t, held)

	h, s := newStub(t, first(0, nil), func(d *sqlhandler.Dialect) { d.Overtaken = true })
	held, err = h.ReleaseHeld(t.Context(), claim)
	require.NoError(t, err)
	require.False(t, held, "no row is an answer, and asking twice does not make it less certain")
	require.Len(t, s.sent(), 2)
}

func TestHistory(t *testing.T) {
	h, s := newStub(t, first(0, nil,
		[]driver.Value{"t2", "host/2", int64(9), int64(2_000_000), int64(4_000_000), "held"},
		[]driver.Value{nil, "somebody", nil, nil, int64(1_000_000), "expired"}))
	runs, err := h.History(t.Context(), "key", 5)
	require.NoError(t, err)
	require.Equal(t, []sqlhandler.Run{
		{Token: "t2", Holder: "host/2", Fence: 9, Since: time.Unix(2, 0).UTC(), Until: time.Unix(4, 0).UTC(), Outcome: sqlhandler.RunHeld},
		{Holder: "somebody", Until: time.Unix(1, 0).UTC(), Outcome: sqlhandler.RunExpired},
	}, runs)
	require.Equal(t, []call{{"history", []any{"key", "", "", "", int64(5)}}}, s.sent())

	_, err = h.History(t.Context(), "key", 0)
	require.ErrorContains(t, err, "ask for one at least")
	h, s = newStub(t, nil, func(d *sqlhandler.Dialect) { d.History = sqlhandler.Statement{} })
	_, err = h.History(t.Context(), "key", 5)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "WithHistory if its package has that option, or give its dialect a History")
	require.Empty(t, s.sent())
}

// A text that the server could take for another one is refused before anything is sent, and so is a claim without a token, which
// would be everybody's.
func TestClaimsThatCouldBecomeAnotherAreRefused(t *testing.T) {
	with := func(change func(*loki.Claim)) loki.Claim {
		c := claim
		change(&c)
		return c
	}
	for says, c := range map[string]loki.Claim{
		"no token":                             with(func(c *loki.Claim) { c.Token = "" }),
		"key is longer than the 10":            with(func(c *loki.Claim) { c.Key = strings.Repeat("𐍈", 6) }),
		"token is longer than the 8":           with(func(c *loki.Claim) { c.Token = "123456789" }),
		"superseded token is longer than":      with(func(c *loki.Claim) { c.Supersedes = "123456789" }),
		`key "\xff" is not valid UTF-8`:        with(func(c *loki.Claim) { c.Key = "\xff" }),
		`token "\xff" is not valid UTF-8`:      with(func(c *loki.Claim) { c.Token = "\xff" }),
		`superseded token "\xff" is not valid`: with(func(c *loki.Claim) { c.Supersedes = "\xff" }),
		`key "a " ends in a blank`:             with(func(c *loki.Claim) { c.Key = "a " }),
		`token "a " ends in a blank`:           with(func(c *loki.Claim) { c.Token = "a " }),
	} {
		b, s := newStub(t, nil)
		_, err := b.Lock(t.Context(), c)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "stubhandler: lock of ")
		require.False(t, loki.IsUnavailable(err))
		_, err = b.Extend(t.Context(), c)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, b.Release(t.Context(), c), says)
		require.Empty(t, s.sent())
	}
	b, s := newStub(t, nil)
	_, _, err := b.Inspect(t.Context(), "a ")
	require.ErrorContains(t, err, "ends in a blank")
	_, err = b.History(t.Context(), "a ", 1)
	require.ErrorContains(t, err, "ends in a blank")
	require.Empty(t, s.sent())
}

func TestWhatCannotWorkIsToldByEverything(t *testing.T) {
	db := sql.OpenDB(&stub{})
	t.Cleanup(func() { _ = db.Close() })
	wrong := dialect()
	wrong.Invalid = errors.New("the name of the table is empty")
	unfinished := dialect()
	unfinished.Judge, unfinished.Grant.Args, unfinished.History.Args = nil, nil, nil
	for says, h := range map[string]*sqlhandler.Base{
		"stubhandler: the database is nil":                    sqlhandler.NewBase(nil, dialect()),
		"open one and give it to New":                         sqlhandler.NewBase(nil, dialect()),
		"name of the table":                                   sqlhandler.NewBase(db, wrong),
		"the dialect lacks Grant.Args, History.Args, Judge":   sqlhandler.NewBase(db, unfinished),
		"lacks Name, Table, Grant.Text, Grant.Args, Extend.T": sqlhandler.NewBase(db, sqlhandler.Dialect{}),
		"was not made by NewBase":                             {},
	} {
		require.ErrorContains(t, h.Validate(), says)
		for op, send := range operations {
			require.ErrorContains(t, send(t.Context(), h), says, op)
		}
	}
	require.Error(t, (*sqlhandler.Base)(nil).Validate())

	err := sqlhandler.NewBase(nil, sqlhandler.Dialect{}).Validate()
	require.ErrorContains(t, err, "sqlhandler: the dialect lacks Name, ")
	require.ErrorContains(t, err, "sqlhandler: the database is nil", "every mistake at once")
	require.NotContains(t, err.Error(), "Open", "a package need not have one")
	require.NoError(t, sqlhandler.NewBase(db, dialect()).Validate())
}

func TestStatementText(t *testing.T) {
	const file = "-- what it is for\n--\nSELECT 1\n    -- why\n    --+ , 2 -- kept\n--+FROM t\n\n;\n"
	require.Equal(t, "SELECT 1\n;\n", sqlhandler.StatementText(file, false))
	require.Equal(t, "SELECT 1\n    , 2 -- kept\nFROM t\n;\n", sqlhandler.StatementText(file, true))
}

func TestDurationsAreRoundedUp(t *testing.T) {
	require.EqualValues(t, 1, sqlhandler.Milliseconds(1))
	require.EqualValues(t, 1500, sqlhandler.Milliseconds(1500*time.Millisecond))
	require.EqualValues(t, 1501, sqlhandler.Milliseconds(1500*time.Millisecond+1))

	const longest = math.MaxInt32 * time.Second
	for d, want := range map[time.Duration]int64{1: 1, time.Second: 1, time.Second + 1: 2, longest: math.MaxInt32} {
		seconds, err := sqlhandler.Seconds(d)
		require.NoError(t, err)
		require.Equal(t, want, seconds)
	}
	for _, d := range []time.Duration{0, -1, longest + 1} {
		_, err := sqlhandler.Seconds(d)
		require.ErrorContains(t, err, d.String())
	}
}

func TestBaseDoTreatsACallAsAStatement(t *testing.T) {
	h, s := newStub(t, nil)
	calls := 0
	do := func(key string, errs ...error) error {
		calls = 0
		return h.Do(t.Context(), "notify", key, func() error {
			calls++
			if calls <= len(errs) {
				return errs[calls-1]
			}
			return nil
		})
	}
	require.NoError(t, do("k"))
	require.NoError(t, do("k", errLost), "it is repeated")
	require.Equal(t, 2, calls)
	err := do("k", errDown, errDown)
	require.True(t, loki.IsUnavailable(err))
	require.ErrorContains(t, err, `stubhandler: notify of "k" in "locks": wait`)
	require.Equal(t, 1, calls)
	err = do("k", errNoRights)
	require.False(t, loki.IsUnavailable(err))
	require.ErrorIs(t, err, errNoRights)
	require.ErrorContains(t, do("k "), "ends in a blank")
	require.Zero(t, calls, "a key that the store cannot tell from another is not asked about")

	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, h.Do(ctx, "notify", "k", func() error { cancel(); return errBroken }), context.Canceled)
	require.Empty(t, s.sent())

	require.ErrorContains(t, (*sqlhandler.Base)(nil).Do(t.Context(), "notify", "k", func() error { return nil }), "not made by NewBase")
}
