// Package mssqltable says what the tables of SQL Server have to look like, by what the catalog tells of their columns and not
// by a version that somebody wrote down.
//
// It does not change a table: that is for migrations.
package mssqltable

import (
	"context"
	"database/sql"
	_ "embed" // the look at the catalog
	"fmt"
	"slices"
	"strings"

	"github.com/lokilock/loki/internal/mssqlname"
)

//go:embed columns.sql
var columnsSQL string

// column is what the catalog says of a column, or what is needed of it.
type column struct {
	name, kind string
	length     int // in bytes, -1 for max; at least this much is needed
	collation  string
	key        bool
	leads      bool   // an index, without which a whole table would be read
	since      string // the migration that it comes with
}

// locks are the columns of the table of locks. There may be others, if LokiNet and the handler can leave them out.
var locks = []column{
	{name: "ServiceKey", kind: "nvarchar", length: 800, collation: "BIN2", key: true, since: "000002"},
	{name: "CreationDate", kind: "datetime", since: "000001"},
	{name: "Token", kind: "nvarchar", length: 256, collation: "BIN2", since: "000002"},
	{name: "Holder", kind: "nvarchar", length: -1, since: "000002"},
	{name: "ExpiresAt", kind: "datetime2", since: "000002"},
	{name: "Fence", kind: "bigint", since: "000002"},
}

// kept are the columns that the table of locks has for a history.
var kept = []column{
	{name: "RunEndedAt", kind: "datetime2", since: "000003"},
	{name: "RunEnding", kind: "varchar", length: 10, since: "000003"},
}

// history are the columns of the table of the claims that have ended.
var history = []column{
	{name: "ServiceKey", kind: "nvarchar", length: 800, collation: "BIN2", leads: true, since: "000003"},
	{name: "Token", kind: "nvarchar", length: 256, since: "000003"},
	{name: "Holder", kind: "nvarchar", length: -1, since: "000003"},
	{name: "CreationDate", kind: "datetime", since: "000003"},
	{name: "ExpiresAt", kind: "datetime2", since: "000003"},
	{name: "Fence", kind: "bigint", since: "000003"},
	{name: "EndedAt", kind: "datetime2", leads: true, since: "000003"},
	{name: "Ending", kind: "varchar", length: 10, since: "000003"},
	{name: "RunEndedAt", kind: "datetime2", since: "000003"},
	{name: "RunEnding", kind: "varchar", length: 10, since: "000003"},
	{name: "Until", kind: "datetime2", since: "000003"},
	{name: "Outcome", kind: "varchar", since: "000003"},
}

// Fault is one thing that keeps a table from being fit.
type Fault struct {
	Table mssqlname.Table

	// Unseen is true if the catalog shows nothing of the table: it is not there, or this login may not see it.
	Unseen bool

	what string
}

// String is the fault in a sentence.
func (f Fault) String() string { return f.Table.Quoted() + ": " + f.what }

// Faults says what keeps the table, and that of its history if there is to be one, from being fit. There are none if
// there is nothing to do.
func Faults(ctx context.Context, db *sql.DB, table mssqlname.Table, withHistory bool) ([]Fault, error) {
	needed := locks
	if withHistory {
		needed = slices.Concat(locks, kept)
	}
	faults, err := look(ctx, db, table, needed)
	if err != nil || !withHistory {
		return faults, err
	}
	more, err := look(ctx, db, table.History(), history)
	return append(faults, more...), err
}

func look(ctx context.Context, db *sql.DB, table mssqlname.Table, needed []column) (faults []Fault, err error) {
	rows, err := db.QueryContext(ctx, table.Fill(columnsSQL))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]column)
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.name, &c.kind, &c.length, &c.collation, &c.key, &c.leads); err != nil {
			return nil, err
		}
		found[strings.ToLower(c.name)] = c // not every server keeps the case of a name
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return []Fault{{table, true, fmt.Sprintf("there is no such table, or this login may not see it (migration %s)", needed[0].since)}}, nil
	}
	for _, need := range needed {
		why := "is not there"
		if c, ok := found[strings.ToLower(need.name)]; ok {
			why = need.differs(c)
		}
		if why != "" {
			faults = append(faults, Fault{table, false, fmt.Sprintf("the column %s %s (migration %s)", need.name, why, need.since)})
		}
	}
	return faults, nil
}

func (need column) differs(c column) string {
	switch {
	case c.kind != need.kind:
		return fmt.Sprintf("is a %s, not a %s", c.kind, need.kind)
	case need.length > 0 && c.length != -1 && c.length < need.length, need.length == -1 && c.length != -1:
		return fmt.Sprintf("is too short (%d bytes)", c.length)
	case need.collation != "" && !strings.HasSuffix(strings.ToUpper(c.collation), need.collation):
		return fmt.Sprintf("has the collation %s, not a binary one (%s)", c.collation, need.collation)
	case need.key && !c.key:
		return "is not the primary key"
	case need.leads && !c.leads:
		return "has no index"
	}
	return ""
}
