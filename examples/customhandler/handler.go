// Package customhandler keeps loki's locks in SQLite. It is an example of a store of your own: the two methods of a
// [loki.LockHandler], and no capability. So leases are renewed with Lock, no busy error names the holder, and there are no
// fences.
//
//	db, err := sql.Open("sqlite", "file:locks.db?_pragma=busy_timeout(1000)")
//	...
//	err = customhandler.CreateTable(ctx, db) // once
//	...
//	locker, err := loki.NewBuilder().
//		SetServiceKey("invoice-batch").
//		SetPrimaryLockHandler(customhandler.New(db)).
//		Build()
//
// Four things make it right, whatever the store: one atomic statement decides who gets the lock; only the token that
// holds renews or releases; the store's clock, not ours, says what has expired; and an outage is told from a mistake.
// The test beside it runs the conformance suite.
//
// It does not wait for a lock, log, or know of another handler. Nor does it lock across machines: the database is a
// file, and shared by those who can open it.
package customhandler

import (
	"context"
	"database/sql"
	_ "embed" // the statements
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokilock/loki"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed lock.sql
	lockSQL string
	//go:embed release.sql
	releaseSQL string
)

// Handler keeps locks in the table that [CreateTable] makes. It is safe for concurrent use.
type Handler struct{ db *sql.DB }

var _ loki.LockHandler = (*Handler)(nil)

// CreateTable makes the table if there is none.
func CreateTable(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, schemaSQL)
	return classify(err)
}

// New returns a handler on a database that the caller has opened with the driver modernc.org/sqlite, and that the
// caller closes. Give it a busy_timeout: without one, two who write at once are an outage to one of them.
func New(db *sql.DB) *Handler { return &Handler{db: db} }

// Lock records c unless another token holds its key.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	ms := (c.Expiry + time.Millisecond - 1).Milliseconds() // rounded up
	var one int
	err := h.db.QueryRowContext(ctx, lockSQL, c.Key, c.Token, c.Holder, ms, c.Supersedes).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil // another token holds it: an answer, not an error
	}
	return err == nil, classify(err)
}

// Release forgets c if its token still holds.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	_, err := h.db.ExecContext(ctx, releaseSQL, c.Key, c.Token)
	return classify(err)
}

// classify marks what will pass by itself as an outage, for which the Locker falls back to the other store. All else,
// a missing table or a closed database, is a permanent error and stays as it is.
func classify(err error) error {
	sqliteErr, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	err = fmt.Errorf("customhandler: %w", err)
	switch sqliteErr.Code() & 0xff { // the rest of the code is detail
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR:
		return loki.Unavailable(err)
	}
	return err
}
