package sqlhandler

// This file is what one store has that others have not, and what is wrong with a dialect that cannot work.

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/lokilock/loki"
)

// Dialect is how one store is spoken to. It is read by many goroutines at once and must not change once [New] has it.
//
// Each statement answers in the first row of the first result set that has one; the sets before it are empty, those
// after it are read to their end, since errors come last. Columns go by their order, and there may be more of them. Times
// are microseconds, since 1970 or from now, so that no driver can move them to another zone; what the store does not
// know is NULL.
//
// Overtaken, History, StoredKey, Refuse, Conceal and Mistake may be left out. Every other field is required, Judge too: [Handler.Validate]
// says which of them are missing.
type Dialect struct {
	// Name is the package that speaks the dialect: what its errors begin with.
	Name string

	// Table is the table as errors name it, quoted and with its schema.
	Table string

	// Grant records a claim if nobody else holds its key, as [loki.Granter] has it: one row in any case, with Held (0 or
	// 1), Fence, and of whoever holds it instead Holder, Since, Until, Left (from now).
	Grant Statement

	// Extend renews a claim that holds, as [loki.Extender] has it: one row in any case, with Held (0 or 1).
	Extend Statement

	// Release forgets a claim, as [loki.Releaser] has it: no row if there was none, or one with Next, for the next release's
	// [Call.SweepFrom], and Held (0 or 1), which is 1 if the claim was there and had not expired.
	Release Statement

	// Inspect tells of the claim that holds a key: Holder, Since, Until, Left, or no row.
	Inspect Statement

	// History tells of the latest claims of a key, the newest first, [Call.Limit] at most: a row each with Token, Holder,
	// Fence, Since, Until, Outcome. Without a text no history is kept; see [Handler.History].
	History Statement

	// Overtaken says that a statement may not see what came in between its look at the table and its turn. Then no row from
	// Grant means that it changed nothing and is to be sent again, three times at most; after that the store is unavailable.
	// No row from Release means that it found no claim, which is believed when it has been sent twice.
	Overtaken bool

	// MaxKey and MaxToken are what the columns hold, in UTF-16 units.
	MaxKey, MaxToken int

	// StoredKey is a key as it stands in the table, where that is not the key itself. No two keys may become one.
	StoredKey func(key string) string

	// Refuse says what keeps a text from being stored and compared as it is, as in "ends in a blank, which ...", or
	// nothing. what is "key", "token", "superseded token" or "holder"; the text is valid UTF-8 and not too long.
	Refuse func(what, text string) string

	// Judge says what an error of the driver means and, unless empty, what to do about it, as in "run the migrations".
	// Errors of database/sql, of contexts and of the network need not be known to it.
	Judge func(err error) (verdict Verdict, advice string)

	// Conceal, if not nil, returns an error of the driver, or another in its place where it repeats a secret, such as a data
	// source name.
	Conceal func(err error) error

	// Mistake, if not nil, is what is wrong with the options that the dialect was made from. [Handler.Validate] returns
	// it, and nothing is ever sent.
	Mistake error
}

// Statement is what is sent for one operation.
type Statement struct {
	Text string

	// Args are the arguments for a call, in the order of the text. It is required, also where it returns none.
	Args func(Call) []any
}

// Call is what a statement is sent for.
type Call struct {
	// Claim is the claim, checked, its Key as [Dialect.StoredKey] has it. Inspect and History have a Key alone.
	// Supersedes is never the claim's own token.
	loki.Claim

	// SweepFrom is where a Release may go on to remove, a few at a time, rows of other keys that expired long ago: the
	// Next that the last one told, or empty for the beginning. A handler's releases so walk the whole table. Those at
	// once may walk the same stretch.
	SweepFrom string

	// Limit is how many rows History may tell.
	Limit int
}

// Verdict is what an error of a store means.
type Verdict int

const (
	// Unknown leaves it to what is known of database/sql and the network. An error that is not known there either is a
	// mistake.
	Unknown Verdict = iota

	// Mistake is somebody's, and the same again tomorrow: no permission, no such table.
	Mistake

	// Unavailable means that the store cannot be reached, or cannot answer now.
	Unavailable

	// Unopened means that the server does not open the database, and does not say whether there is one of that name. It is
	// a permanent error until the handler has had an answer, and unavailable from then on: the database was there.
	Unopened

	// Broken means that the connection broke, so that the call is worth repeating over another one. After that it is
	// unavailable.
	Broken

	// Again means that the call lost against another session and left nothing behind, as the victim of a deadlock does: it
	// is repeated once, and a release three times, since nobody else will make it. After that it is unavailable.
	Again
)

// lacks says what is missing in the dialect, every mistake at once.
func (d Dialect) lacks() error {
	var missing []string
	for _, field := range []struct {
		name  string
		there bool
	}{
		{"Name", d.Name != ""},
		{"Table", d.Table != ""},
		{"Grant.Text", d.Grant.Text != ""},
		{"Grant.Args", d.Grant.Args != nil},
		{"Extend.Text", d.Extend.Text != ""},
		{"Extend.Args", d.Extend.Args != nil},
		{"Release.Text", d.Release.Text != ""},
		{"Release.Args", d.Release.Args != nil},
		{"Inspect.Text", d.Inspect.Text != ""},
		{"Inspect.Args", d.Inspect.Args != nil},
		{"History.Args", d.History.Text == "" || d.History.Args != nil},
		{"MaxKey", d.MaxKey > 0},
		{"MaxToken", d.MaxToken > 0},
		{"Judge", d.Judge != nil},
	} {
		if !field.there {
			missing = append(missing, field.name)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("sqlhandler: the dialect lacks %s", strings.Join(missing, ", "))
}

// wrong is everything that keeps a handler from working.
func (d Dialect) wrong(noDatabase bool) error {
	err := d.Mistake
	if err == nil { // one that could not be made from its options need not be whole
		err = d.lacks()
	}
	if noDatabase {
		err = errors.Join(err, fmt.Errorf("%s: the database is nil: open one and give it to New", cmp.Or(d.Name, "sqlhandler")))
	}
	return err
}
