package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/internal/mssqltable"
)

// attempts is how often the migrations are run at most when others seem to run them at the same time. Each run that
// fails because another was quicker leaves less to do, so the second is nearly always enough.
const attempts = 5

// Apply makes the table fit for package mssqlhandler, or leaves it alone if it is: then the login needs no right to
// change anything. It makes a table that is missing and takes over one of LokiNet, with the rows that it has.
//
// It may be called by many instances at once, and again after it was cut off at any point: every step looks first and
// is whole or not done at all, so nothing depends on being alone. Whoever comes second finds the work done.
//
// The error of a login that may not change the schema says who has to run what; so does any other that the server answers
// a step with, for the case that it is that, since not every server has numbers for it. ctx bounds all of it. The database
// stays open; the driver is go-mssqldb.
func Apply(ctx context.Context, db *sql.DB, opts ...Option) error {
	chosen, err := choose(opts)
	if db == nil {
		err = errors.Join(err, errors.New("migrations: the database is nil"))
	}
	if err != nil {
		return err
	}
	ups, err := upMigrations(chosen)
	if err != nil {
		return err
	}
	table := chosen.table
	var failed error
	ran := false
	for attempt := 0; ; attempt++ {
		faults, err := mssqltable.Faults(ctx, db, table, chosen.history)
		switch {
		case err != nil && attempt < attempts && worthRepeating(err):
			continue // a table that changes under the catalog's eyes, be it another's, can make it fail
		case err != nil:
			return fmt.Errorf("migrations: looking at %s: %w", table.Quoted(), errors.Join(err, failed))
		case len(faults) == 0:
			return nil
		case failed != nil && (attempt == attempts || !worthRepeating(failed)):
			return explain(table, failed)
		case failed == nil && ran:
			return fmt.Errorf("migrations: %s is not the table that is needed, and not one that these migrations make or take over: %s; rename it, or choose another name with WithTable", table.Quoted(), tell(faults))
		}
		failed, ran = run(ctx, db, ups), true
	}
}

// run executes ups in order on one connection, which is not used again if one of them failed: a batch that was cut off
// may have left a transaction open on it.
func run(ctx context.Context, db *sql.DB, ups []string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, up := range ups {
		if _, err := conn.ExecContext(ctx, up); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // discards the connection and returns this very error
			return err
		}
	}
	return nil
}

// denied are the numbers of SQL Server for what a login may not do, some of which say that the object may not exist.
var denied = []int32{229, 230, 262, 297, 1088, 2760, 4902, 15151, 15247}

// worthRepeating reports whether err may be another instance's doing: an object, column or key that exists since, a
// deadlock, a constraint that was gone. Those have many numbers, and looking once too often does no harm.
func worthRepeating(err error) bool {
	var e mssql.Error
	return errors.As(err, &e) && !slices.Contains(denied, e.Number)
}

func explain(table mssqlname.Table, err error) error {
	const advice = "have somebody with CREATE TABLE and ALTER on the schema call migrations.Apply, or run what migrations.Script returns for the same options, once; " +
		"after that SELECT, INSERT, UPDATE and DELETE on the table are enough"
	var e mssql.Error
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("migrations: making %s fit: %w", table.Quoted(), err)
	case slices.Contains(denied, e.Number):
		return fmt.Errorf("migrations: this login may not make or change %s, or its schema does not exist: %s: %w", table.Quoted(), advice, err)
	}
	return fmt.Errorf("migrations: %s could not be made fit; if this login may not change it, or its schema does not exist, %s: %w", table.Quoted(), advice, err)
}

// tell joins faults to a sentence.
func tell(faults []mssqltable.Fault) string {
	var told []string
	for _, f := range faults {
		told = append(told, f.String())
	}
	return strings.Join(told, "; ")
}
