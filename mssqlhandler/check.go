package mssqlhandler

import (
	"context"
	"database/sql"
	_ "embed" // the looks at the permissions and the session
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/internal/mssqltable"
	"github.com/lokilock/loki/sqlhandler"
)

var (
	//go:embed sql/permissions.sql
	permissionsSQL string
	//go:embed sql/session.sql
	sessionSQL string
)

// checkTimeout is what [Check] takes at most: a service that starts gives it the context that it runs with, which may not end.
const checkTimeout = 10 * time.Second

// Check says at start-up whether a handler made with the same options could work: whether the table is there with the
// columns, types, collation and key that it needs, likewise that of a history, whether this login may read and write
// them, whether the database can be written to (a readable secondary replica cannot), and whether what its sessions do is
// committed. It returns every fault at once, each in a sentence that says what to run, or nil. It changes nothing.
//
// A server that cannot answer now is an error too, for which [loki.IsUnavailable] is true: whether that is a reason not to
// start is the caller's to say. All of it takes ten seconds at most, and no longer than ctx lasts. The database stays open.
func Check(ctx context.Context, db *sqlx.DB, opts ...Option) error {
	if err := New(db, opts...).Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s := choose(opts)
	faults, err := mssqltable.Faults(ctx, db.DB, s.table, s.keepsHistory())
	if err != nil {
		return explainLook(ctx, s.table, err)
	}
	var found []error
	for _, look := range s.permissions() {
		ofTable := slices.DeleteFunc(slices.Clone(faults), func(f mssqltable.Fault) bool { return f.Table != look.table })
		told, err := s.tell(ctx, db.DB, look, ofTable)
		if err != nil {
			return explainLook(ctx, look.table, err)
		}
		found = append(found, told...)
	}
	var implicit, readOnly bool
	if err := db.QueryRowContext(ctx, sqlhandler.StatementText(sessionSQL, false)).Scan(&implicit, &readOnly); err != nil {
		return explainLook(ctx, s.table, err)
	}
	if implicit {
		found = append(found, errors.New("mssqlhandler: the session has IMPLICIT_TRANSACTIONS on: "+leaveImplicitOut))
	}
	if readOnly {
		found = append(found, errors.New("mssqlhandler: the database is read-only: "+writable))
	}
	return errors.Join(found...)
}

// tell says what to run about the faults of one table, and about the rights to it that are missing.
func (s settings) tell(ctx context.Context, db *sql.DB, look permission, faults []mssqltable.Fault) (told []error, err error) {
	user, missing, err := missing(ctx, db, look.table, look.wanted)
	if err != nil {
		return nil, err
	}
	grant := ""
	if len(missing) > 0 {
		grant = fmt.Sprintf("run GRANT %s ON %s TO %s", strings.Join(missing, ", "), look.table.Quoted(), mssqlname.Quote(user))
	}
	for _, fault := range faults {
		migrate := fmt.Sprintf("run migrations.Apply%s, or have somebody who may run what migrations.Script returns for the same options", s.withHistory())
		if fault.Unseen && grant != "" {
			// The catalog shows nothing of a table to a login without any right to it.
			there, err := isThere(ctx, db, look.table)
			if err != nil {
				return nil, err
			}
			if there {
				continue
			}
			migrate += ", if it is not there; and in any case " + grant
			grant = ""
		}
		told = append(told, fmt.Errorf("mssqlhandler: %s: %s", fault, migrate))
	}
	if grant != "" {
		told = append(told, fmt.Errorf("mssqlhandler: this login (%s) may not do all that a handler does with %s: %s", user, look.table.Quoted(), grant))
	}
	return told, nil
}

// isThere reports whether a table is there for certain: the server refuses to read it, and not because it finds none. Not
// every server has a number for that.
func isThere(ctx context.Context, db *sql.DB, table mssqlname.Table) (bool, error) {
	_, err := db.ExecContext(ctx, "SELECT 1 FROM "+table.Quoted()+" WHERE 1 = 0")
	if verdict, _ := judge(err); err != nil && (ctx.Err() != nil || !isOfServer(err) || verdict == sqlhandler.VerdictUnavailable) {
		return false, err
	}
	return err == nil || hasNumber(err, permissionDenied), nil
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
	rows, err := db.QueryContext(ctx, table.Fill(sqlhandler.StatementText(permissionsSQL, false)))
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
	verdict, advice := judge(err)
	if advice == askCheck {
		advice = ""
	} else if advice != "" {
		advice += ": "
	}
	told := fmt.Errorf("mssqlhandler: looking at %s: %s%w", table.Quoted(), advice, err)
	switch verdict {
	case sqlhandler.VerdictUnavailable, sqlhandler.VerdictBroken, sqlhandler.VerdictRetry:
		if !errors.Is(ctx.Err(), context.Canceled) {
			return loki.Unavailable(told)
		}
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
