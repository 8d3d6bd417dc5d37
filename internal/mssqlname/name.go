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
	// maxName is what SQL Server allows, in UTF-16 units. The names of the table of the history and of the constraints are
	// made from the table's with these, so that a table's name has to leave room for them.
	maxName          = 128
	primaryKeyPrefix = "PK_"
	historySuffix    = "History"
)

// Table says which table holds the locks.
type Table struct{ Schema, Name string }

// Default is [dbo].[LokiLockings].
func Default() Table { return Table{Schema: DefaultSchema, Name: DefaultTable} }

// Validate returns every mistake in the names, a sentence each.
func (t Table) Validate() error {
	return errors.Join(
		validate("schema", t.Schema, maxName),
		validate("table", t.Name, maxName-len(primaryKeyPrefix+historySuffix)),
	)
}

// Quoted is the table as it stands in a statement: [schema].[table].
func (t Table) Quoted() string { return Quote(t.Schema) + "." + Quote(t.Name) }

// History is the table that keeps the claims which have ended.
func (t Table) History() Table { return Table{Schema: t.Schema, Name: t.Name + historySuffix} }

// Fill returns a statement that was written for the default table as one for t. The statement may name the table as
// [dbo].[LokiLockings], its primary key as [PK_LokiLockings], the history likewise with its suffix, and any of them in a
// string of its own, N'[dbo].[LokiLockings]', but not within a longer string, where quotes in a name would have to be
// doubled once for each level.
func (t Table) Fill(statement string) string {
	d := Default()
	var pairs []string
	for _, names := range [][2]string{
		{d.Quoted(), t.Quoted()},
		{d.quotedKey(), t.quotedKey()},
		{d.History().Quoted(), t.History().Quoted()},
		{d.History().quotedKey(), t.History().quotedKey()},
	} {
		pairs = append(pairs, literal(names[0]), literal(names[1]), names[0], names[1])
	}
	return strings.NewReplacer(pairs...).Replace(statement)
}

// quotedKey is the name of the primary key, which is unique in the schema because the table's name is.
func (t Table) quotedKey() string { return Quote(primaryKeyPrefix + t.Name) }

// Quote is a name as it stands in a statement: [name].
func Quote(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

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
