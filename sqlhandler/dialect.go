package sqlhandler

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/lokilock/loki"
)

// Dialect describes one store. Many goroutines read it at once, so it must not change after [NewBase].
//
// Each statement answers in the first row of the first result set that has one. The sets before it are empty; those after it
// are read to their end, because errors come last. Columns are read by position, and there may be more of them than named
// here. Times are microseconds, since 1970 or from now, so that no driver can move them to another time zone. NULL is what
// the store does not know.
//
// Name, Table, Judge, MaxKey, MaxToken and every statement but History are required: [Base.Validate] reports which are
// missing.
type Dialect struct {
	// Name is the package that implements the dialect. Errors begin with it.
	Name string

	// Table is the table as errors name it, quoted and with its schema.
	Table string

	// Grant records a claim if no other token holds its key, as in [loki.Granter]. It always answers one row: Held (0 or 1),
	// Fence, and of the current holder, if that is another one, Holder, Since, Until, Left (from now).
	Grant Statement

	// Extend renews a claim that holds, as in [loki.Extender]. It always answers one row: Held (0 or 1).
	Extend Statement

	// Release removes a claim, as in [loki.Releaser]. It answers no row if there was none, else one: Next, which the next
	// release gets as [Call.SweepFrom], and Held (0 or 1), which is 1 if the claim was there and had not expired.
	Release Statement

	// Inspect reads the claim that holds a key. It answers Holder, Since, Until, Left, or no row.
	Inspect Statement

	// History reads the latest claims of a key, the newest first, at most [Call.Limit]. It answers a row for each: Token,
	// Holder, Fence, Since, Until, Outcome. Without a text the store keeps no history; see [Base.History].
	History Statement

	// Overtaken says that a statement may miss what was committed between its snapshot and its turn. Then no row from Grant
	// means that nothing was changed, and it is sent again, three times at most; after that the store is unavailable. No row
	// from Release means that it found no claim, which counts when it has been sent twice.
	Overtaken bool

	// MaxKey and MaxToken are the lengths of the columns, in UTF-16 units. Longer texts are refused: a server that cut them
	// would take two keys for one.
	MaxKey, MaxToken int

	// Refuse, if not nil, returns why the store cannot tell a key or a token from others, as in "ends in a blank, which ...",
	// or "". what is "key", "token" or "superseded token"; the text is valid UTF-8 and not too long.
	Refuse func(what, text string) string

	// Judge returns what an error of the driver means and, unless empty, what to do about it, as in "run the migrations".
	// It need not know the errors of database/sql, of contexts and of the network.
	Judge func(err error) (verdict Verdict, advice string)

	// Conceal, if not nil, returns err, or another error in its place if it repeats a secret, such as a data source name.
	Conceal func(err error) error

	// Invalid, if not nil, is what is wrong with the options that the dialect was made from. [Base.Validate] and every
	// method return it, and nothing is ever sent.
	Invalid error
}

// Statement is what is sent for one operation.
type Statement struct {
	Text string

	// Args returns the arguments for a call, in the order of the text. It is required, also if it returns none.
	Args func(Call) []any
}

// Call is one call of a store: what the arguments of a statement are made of.
type Call struct {
	// Claim is the claim. Inspect and History have a Key alone. Supersedes is never the claim's own token.
	loki.Claim

	// Ending is how what ran under the claim ended, for a history: [RunReleased] or [RunFailed]. Empty with Grant and Extend
	// unless the claim is Over, and with Release if it is Unused.
	Ending RunOutcome

	// SweepFrom is where a Release may continue to remove rows of other keys that expired long ago, a few at a time: the
	// Next of the last one, or empty for the beginning of the table. Concurrent releases may walk the same stretch.
	SweepFrom string

	// Limit is how many rows History may answer.
	Limit int
}

// Verdict is what an error of a store means.
type Verdict int

const (
	// VerdictUnknown leaves the decision to what this package knows of database/sql and the network. An error that is not
	// known there either is permanent.
	VerdictUnknown Verdict = iota

	// VerdictPermanent is an error that the next attempt will get too: no permission, no such table.
	VerdictPermanent

	// VerdictUnavailable means that the store cannot be reached, or cannot answer now.
	VerdictUnavailable

	// VerdictUnopened means that the server does not open the database, and does not say whether there is one of that name.
	// It is permanent until the handler has had an answer, and unavailable from then on: the database was there.
	VerdictUnopened

	// VerdictBroken means that the connection broke, so that the call is worth repeating over another one. After that it is
	// unavailable.
	VerdictBroken

	// VerdictRetry means that the call lost against another session and changed nothing, such as the victim of a deadlock.
	// It is repeated once, and a release three times, since nothing else would repeat it. After that it is unavailable.
	VerdictRetry
)

// missing returns an error that names each required field that is missing.
func (d Dialect) missing() error {
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

// validate returns everything that keeps a handler from working.
func (d Dialect) validate(noDatabase bool) error {
	err := d.Invalid
	if err == nil { // one that could not be made from its options need not be whole
		err = d.missing()
	}
	if noDatabase {
		err = errors.Join(err, fmt.Errorf("%s: the database is nil: open one and give it to New", cmp.Or(d.Name, "sqlhandler")))
	}
	return err
}
