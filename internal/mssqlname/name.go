// Package mssqlname is the one place where names become part of T-SQL: which table is meant, and how it is quoted.
//
// It does not talk to a server: whether the table exists is for others to find out.
package mssqlname

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What the .NET library LokiNet uses.
const (
	DefaultSchema = "dbo"
	DefaultTable  = "LokiLockings"
)

const (
	// maxName is what SQL Server allows, in UTF-16 units; primaryKeyPrefix makes the constraint's name from the
	// table's, so that a table's name has to leave room for it.
	maxName          = 128
	primaryKeyPrefix = "PK_"
)

// Table says which table holds the locks.
type Table struct{ Schema, Name string }

// Default is [dbo].[LokiLockings].
func Default() Table { return Table{Schema: DefaultSchema, Name: DefaultTable} }

// Validate returns every mistake in the names, a sentence each.
func (t Table) Validate() error {
	return errors.Join(
		validate("schema", t.Schema, maxName),
		validate("table", t.Name, maxName-len(primaryKeyPrefix)),
	)
}

// Quoted is the table as it stands in a statement: [schema].[table].
func (t Table) Quoted() string { return quote(t.Schema) + "." + quote(t.Name) }

// Fill returns a statement that was written for the default table as one for t. The statement may name the table as
// [dbo].[LokiLockings], its primary key as [PK_LokiLockings], and either in a string of its own, N'[dbo].[LokiLockings]',
// but not within a longer string, where quotes in a name would have to be doubled once for each level.
func (t Table) Fill(statement string) string {
	d := Default()
	return strings.NewReplacer(
		literal(d.Quoted()), literal(t.Quoted()),
		d.Quoted(), t.Quoted(),
		literal(d.quotedKey()), literal(t.quotedKey()),
		d.quotedKey(), t.quotedKey(),
	).Replace(statement)
}

// quotedKey is the name of the primary key, which is unique in the schema because the table's name is.
func (t Table) quotedKey() string { return quote(primaryKeyPrefix + t.Name) }

func quote(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

func validate(what, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", what)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name of the %s, %q, is not valid UTF-8", what, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name of the %s, %q, has a control character in it", what, name)
	case len(utf16.Encode([]rune(name))) > limit:
		return fmt.Errorf("the name of the %s, %q, is too long: at most %d UTF-16 units", what, name, limit)
	}
	return nil
}
