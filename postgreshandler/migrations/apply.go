package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokilock/loki/postgreshandler/internal/postgreserror"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestable"
	"github.com/lokilock/loki/sqlhandler"
)

// Apply makes the tables for package postgreshandler, or leaves them alone if they are there: then the login needs no right
// to change anything.
//
// It may be called by many instances at once, and again after it was cut off at any point: they take turns, by an advisory
// lock, and all of it is one transaction. Whoever comes second finds the work done. It works through a pooler, too.
//
// The error of a login that may not change the schema says who has to run what; so does any other that the server answers
// a step with, for the case that it is that. ctx bounds all of it. The database
// stays open; the driver is pgx.
func Apply(ctx context.Context, db *sql.DB, opts ...Option) error {
	s, err := choose(opts)
	if db == nil {
		err = errors.Join(err, errors.New("migrations: the database is nil"))
	}
	if err != nil {
		return err
	}
	ups, err := s.upMigrations()
	if err != nil {
		return err
	}
	faults, err := s.faults(ctx, db)
	if err != nil {
		return s.explain("looking at", err)
	}
	if len(faults) == 0 {
		return nil
	}
	faults, err = s.run(ctx, db, ups)
	switch {
	case err != nil:
		return s.explain("making fit", err)
	case len(faults) > 0:
		return fmt.Errorf("migrations: %s is not a table that these migrations make: %s; rename it, or choose another name with WithTable", s.table.Quoted(), strings.Join(faults, "; "))
	}
	return nil
}

func (s settings) faults(ctx context.Context, db postgrestable.Database) ([]string, error) {
	return postgrestable.Faults(ctx, db, s.table, s.history)
}

// turn is what instances take turns by. It is not what a handler's statements lock: those add the table's number.
const turn = "SELECT pg_advisory_xact_lock(hashtextextended($1::text, -1))"

// run executes ups, unless another instance has by the time that it is this one's turn, and says what is not fit then.
//
// READ COMMITTED is named because the default may be another: the look has to see what others committed while this one
// waited for its turn.
func (s settings) run(ctx context.Context, db *sql.DB, ups []string) (faults []string, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit there is nothing to roll back, and a failure has been told
	if _, err := tx.ExecContext(ctx, turn, "loki migrations of "+s.table.Quoted()); err != nil {
		return nil, err
	}
	if faults, err := s.faults(ctx, tx); err != nil || len(faults) == 0 {
		return nil, err
	}
	for _, up := range ups {
		if _, err := tx.ExecContext(ctx, up); err != nil {
			return nil, err
		}
	}
	if faults, err := s.faults(ctx, tx); err != nil || len(faults) > 0 {
		return faults, err
	}
	return nil, tx.Commit()
}

// Codes of PostgreSQL (SQLSTATE) with a sentence of their own.
const (
	insufficientPrivilege = "42501"
	invalidSchema         = "3F000"
)

// explain says what failed while the tables were looked at or made fit, and who has to run what.
func (s settings) explain(doing string, err error) error {
	const advice = "have somebody with CREATE on the schema call migrations.Apply, or run what migrations.Script returns for the same options, once; " +
		"after that USAGE on the schema and SELECT, INSERT, UPDATE and DELETE on the two tables are enough"
	var coded interface{ SQLState() string }
	switch verdict, hint := postgreserror.Judge(err); {
	case !errors.As(err, &coded), connecting(err), verdict == sqlhandler.VerdictUnavailable:
		if hint != "" {
			hint += ": "
		}
		return fmt.Errorf("migrations: %s %s: %s%w", doing, s.table.Quoted(), hint, postgreserror.Shown(err))
	case coded.SQLState() == insufficientPrivilege || coded.SQLState() == invalidSchema:
		return fmt.Errorf("migrations: this login may not make or change %s, or its schema does not exist: %s: %w", s.table.Quoted(), advice, err)
	}
	return fmt.Errorf("migrations: %s %s failed; if this login may not change it, or its schema does not exist, %s: %w", doing, s.table.Quoted(), advice, err)
}

// connecting reports whether err kept a connection from being made.
func connecting(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}
