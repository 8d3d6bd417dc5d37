package mssqlhandler

// This file is the look at the tables and at the login's rights before the first claim.

import (
	"context"
	"database/sql"
	_ "embed" // the look at the permissions
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/internal/mssqltable"
	"github.com/lokilock/loki/sqlhandler"
)

//go:embed sql/permissions.sql
var permissionsSQL string

// Check says at start-up whether a handler made with the same options could work: whether the table is there with the
// columns, types, collation and key that it needs, likewise that of a history, and whether this login may read and write
// them. It returns every fault at once, each in a sentence that says what to run, or nil. It changes nothing.
//
// A server that cannot answer now is an error too, for which [loki.IsUnavailable] is true: whether that is a reason not to
// start is the caller's to say. ctx bounds all of it. The database stays open.
func Check(ctx context.Context, db *sqlx.DB, opts ...Option) error {
	if err := New(db, opts...).Validate(); err != nil {
		return err
	}
	s := choose(opts)
	faults, err := mssqltable.Faults(ctx, db.DB, s.table, s.keepsHistory())
	if err != nil {
		return explainLook(ctx, s.table, err)
	}
	var found []error
	for _, fault := range faults {
		found = append(found, fmt.Errorf("mssqlhandler: %s: run migrations.Apply%s, or have somebody who may run what migrations.Script returns for the same options", fault, s.withHistory()))
	}
	for _, look := range s.permissions() {
		user, missing, err := missing(ctx, db.DB, look.table, look.wanted)
		if err != nil {
			return explainLook(ctx, look.table, err)
		}
		if len(missing) > 0 {
			found = append(found, fmt.Errorf("mssqlhandler: this login (%s) may not do all that a handler does with %s: run GRANT %s ON %[2]s TO %[4]s",
				user, look.table.Quoted(), strings.Join(missing, ", "), mssqlname.Quote(user)))
		}
	}
	return errors.Join(found...)
}

// permission is what a login has to be able to do with a table.
type permission struct {
	table  mssqlname.Table
	wanted []string
}

func (s settings) permissions() []permission {
	needed := []permission{{s.table, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}}}
	if s.keepsHistory() {
		needed = append(needed, permission{s.table.History(), []string{"SELECT", "INSERT", "DELETE"}})
	}
	return needed
}

// missing are the permissions of wanted that this login, which is user here, has not got.
func missing(ctx context.Context, db *sql.DB, table mssqlname.Table, wanted []string) (user string, missing []string, err error) {
	rows, err := db.QueryContext(ctx, table.Fill(sqlhandler.Text(permissionsSQL, false)))
	if err != nil {
		return "", nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var permission string
		var granted bool
		if err := rows.Scan(&user, &permission, &granted); err != nil {
			return "", nil, err
		}
		if !granted && slices.Contains(wanted, permission) {
			missing = append(missing, permission)
		}
	}
	return user, missing, rows.Err()
}

func explainLook(ctx context.Context, table mssqlname.Table, err error) error {
	told := fmt.Errorf("mssqlhandler: looking at %s: %w", table.Quoted(), err)
	if verdict, _ := judge(err); ctx.Err() == nil && verdict != sqlhandler.Unknown && verdict != sqlhandler.Mistake {
		return loki.Unavailable(told)
	}
	return told
}

// withHistory is what migrations.Apply has to be given, for a sentence.
func (s settings) withHistory() string {
	if s.keepsHistory() {
		return " with migrations.WithHistory"
	}
	return ""
}
