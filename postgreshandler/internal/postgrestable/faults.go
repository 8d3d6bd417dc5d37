// Package postgrestable says what the tables have to look like, by what the catalog tells of their columns and not by a
// version that somebody wrote down.
//
// It does not change a table: that is for migrations.
package postgrestable

import (
	"context"
	"database/sql"
	_ "embed" // the look at the catalog
	"fmt"
	"maps"
	"slices"

	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
)

//go:embed columns.sql
var columnsSQL string

// column is what the catalog says of a column, or what is needed of it.
type column struct {
	name, kind      string
	nullable, exact bool
	required        bool // an INSERT has to name it
	place, places   int  // in the primary key
}

const moment = "timestamp with time zone"

// locks are the columns of the table of locks. There may be others, if an INSERT can leave them out.
var locks = []column{
	{name: "service_key", kind: "text", place: 1, places: 1},
	{name: "token", kind: "text"},
	{name: "holder", kind: "text"},
	{name: "granted_at", kind: moment},
	{name: "expires_at", kind: moment},
	{name: "fence", kind: "bigint"},
}

// kept are the columns that the table of locks has for a history.
var kept = []column{
	{name: "ended_at", kind: moment, nullable: true},
	{name: "outcome", kind: "text", nullable: true},
}

// history are the columns of the table of the claims that have ended.
var history = []column{
	{name: "service_key", kind: "text", place: 1, places: 3},
	{name: "granted_at", kind: moment, place: 2, places: 3},
	{name: "token", kind: "text", place: 3, places: 3},
	{name: "holder", kind: "text"},
	{name: "fence", kind: "bigint"},
	{name: "ended_at", kind: moment},
	{name: "outcome", kind: "text"},
}

// Database is a database, or a transaction in it.
type Database interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Faults says what keeps the table, and that of its history if there is to be one, from being fit: a sentence for each
// fault, none if there is nothing to do.
func Faults(ctx context.Context, db Database, table postgresname.Table, withHistory bool) ([]string, error) {
	needed := locks
	if withHistory {
		needed = slices.Concat(locks, kept)
	}
	faults, err := look(ctx, db, table.Quoted(), needed)
	if err != nil || !withHistory {
		return faults, err
	}
	more, err := look(ctx, db, table.QuotedHistory(), history)
	return append(faults, more...), err
}

func look(ctx context.Context, db Database, table string, needed []column) (faults []string, err error) {
	rows, err := db.QueryContext(ctx, columnsSQL, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]column)
	var kind, persistence, oddities string
	for rows.Next() {
		var c column
		if err := rows.Scan(&kind, &persistence, &oddities, &c.name, &c.kind, &c.nullable, &c.required, &c.exact, &c.place, &c.places); err != nil {
			return nil, err
		}
		found[c.name] = c
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	switch {
	case kind == "":
		return []string{table + " is not there, or this login may not see it"}, nil
	case kind != "r":
		return []string{table + " is not a plain table"}, nil
	case persistence != "p":
		faults = append(faults, table+" is unlogged or temporary, and so empty after a crash, whoever holds its locks: run ALTER TABLE ... SET LOGGED")
	}
	if oddities != "" {
		faults = append(faults, table+" has what can change what is written to it, or keep it from being written: "+oddities)
	}
	for _, need := range needed {
		c, there := found[need.name]
		if why := need.differs(c, there); why != "" {
			faults = append(faults, fmt.Sprintf("in %s the column %s %s", table, need.name, why))
		}
		delete(found, need.name)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name].required {
			faults = append(faults, fmt.Sprintf("in %s the column %s is no handler's: it has to have a default, or be nullable", table, name))
		}
	}
	return faults, nil
}

func (need column) differs(c column, there bool) string {
	switch {
	case !there:
		return "is missing"
	case c.kind != need.kind:
		return fmt.Sprintf("is of type %s, not %s", c.kind, need.kind)
	case c.nullable && !need.nullable:
		return "may be NULL"
	case !c.exact:
		return `has a collation that takes different texts for equal, not "C"`
	case c.place != need.place, need.place > 0 && c.places != need.places:
		return "is not where it has to be in the primary key"
	}
	return ""
}
