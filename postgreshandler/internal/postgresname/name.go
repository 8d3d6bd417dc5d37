// Package postgresname is the one place where names become part of PostgreSQL's SQL: which tables are meant, how they are
// quoted, and the channel that goes with them.
//
// It does not talk to a server: whether a table exists is for others to find out.
package postgresname

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The tables that are used unless somebody chooses others.
const (
	DefaultSchema = "public"
	DefaultTable  = "loki_lockings"
)

const (
	// maxName is what PostgreSQL keeps of a name, in bytes: a longer one would be cut without an error.
	maxName = 63

	// historySuffix makes the name of the history's table from that of the locks', and indexSuffix that of its index,
	// for which a table's name has to leave room.
	historySuffix = "_history"
	indexSuffix   = "_ended"
)

// MaxTable is how long the name of a table may be, in bytes.
const MaxTable = maxName - len(historySuffix) - len(indexSuffix)

// Table says which table holds the locks.
type Table struct{ Schema, Name string }

// Default is "public"."loki_lockings".
func Default() Table { return Table{Schema: DefaultSchema, Name: DefaultTable} }

// Validate returns every mistake in the names, a sentence each.
func (t Table) Validate() error {
	return errors.Join(validate("schema", t.Schema, maxName), validate("table", t.Name, MaxTable))
}

// Quoted is the table as it stands in a statement: "schema"."table".
func (t Table) Quoted() string { return quote(t.Schema) + "." + quote(t.Name) }

// QuotedHistory is the table of the history, as it stands in a statement.
func (t Table) QuotedHistory() string { return quote(t.Schema) + "." + quote(t.Name+historySuffix) }

// Channel is where it is notified that a lock of this table may be free. Other databases of a server have their own
// channels by the same name.
func (t Table) Channel() string {
	name := "loki:" + t.Schema + "." + t.Name
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(t.Quoted()))
	return "loki:" + hex.EncodeToString(sum[:16])
}

// QuotedChannel is the channel as LISTEN takes it.
func (t Table) QuotedChannel() string { return quote(t.Channel()) }

// Fill returns a statement that was written for the default table as one for t. The statement may name the table, its
// history and the history's index, each quoted, and the table and the channel as strings of their own.
func (t Table) Fill(statement string) string {
	d := Default()
	return strings.NewReplacer(
		literal(d.Quoted()), literal(t.Quoted()),
		d.Quoted(), t.Quoted(),
		literal(d.QuotedHistory()), literal(t.QuotedHistory()),
		d.QuotedHistory(), t.QuotedHistory(),
		d.quotedIndex(), t.quotedIndex(),
		literal(d.Channel()), literal(t.Channel()),
	).Replace(statement)
}

// quotedIndex is the name of the history's index, which is unique in the schema because the table's name is.
func (t Table) quotedIndex() string { return quote(t.Name + historySuffix + indexSuffix) }

// Quote is a name as it stands in a statement.
func Quote(name string) string { return quote(name) }

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal is a string constant that means the same whatever standard_conforming_strings is.
func literal(s string) string {
	if !strings.Contains(s, `\`) {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return ` E'` + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
}

func validate(what, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", what)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name of the %s, %q, is not valid UTF-8", what, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name of the %s, %q, has a control character in it", what, name)
	case len(name) > limit:
		return fmt.Errorf("the name of the %s, %q, is too long: at most %d bytes", what, name, limit)
	}
	return nil
}
