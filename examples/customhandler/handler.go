// Package customhandler keeps loki's locks in SQLite. It is an example of a store of your own: what every
// [loki.LockHandler] must do, and nothing that it need not.
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
	//go:embed inspect.sql
	inspectSQL string
)

// Handler keeps locks in the table that [CreateTable] makes. It is safe for concurrent use.
type Handler struct{ db *sql.DB }

// Lock and Release are all that is asked of a handler. With Grant the busy error names the holder, and with Validate
// a mistake shows when the Locker is built. There is no Extend, so leases are renewed with Lock.
var (
	_ loki.LockHandler = (*Handler)(nil)
	_ loki.Granter     = (*Handler)(nil)
	_ loki.Inspector   = (*Handler)(nil)
	_ loki.Validator   = (*Handler)(nil)
)

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

// Grant is Lock, and a look at who holds if it is not us. He may be gone when we look: then no name is told.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	held, err := h.Lock(ctx, c)
	if held || err != nil {
		return loki.Grant{Held: held}, err
	}
	holder, _, err := h.Inspect(ctx, c.Key)
	return loki.Grant{HeldBy: holder}, err
}

// Inspect says who holds key.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	var id string
	var since, until int64
	err := h.db.QueryRowContext(ctx, inspectSQL, key).Scan(&id, &since, &until)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return loki.Holder{}, false, nil
	case err != nil:
		return loki.Holder{}, false, classify(err)
	}
	return loki.Holder{ID: id, Since: time.UnixMilli(since), Until: time.UnixMilli(until)}, true, nil
}

// Validate is asked when the Locker is built.
func (h *Handler) Validate() error {
	if h.db == nil {
		return errors.New("customhandler: the database is nil: open one with sql.Open")
	}
	return nil
}

// classify marks what will pass by itself as an outage, for which the Locker falls back to the other store. All else,
// a missing table or a closed database, is somebody's mistake and stays as it is.
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
