package mssqlhandler

// This file is the handler: the shared one with this package's dialect, and the database that Open opens for it.

import (
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// shared is what every handler of a SQL database has: Lock, Release, ReleaseHeld, Grant, Extend, Inspect, History and Validate.
type shared = sqlhandler.Handler

// Handler keeps locks in one table. Make one with [New] or [Open]. It is safe for concurrent use and must not be
// copied. Its operations are those of [sqlhandler.Handler].
//
// A row that LokiNet wrote is held by "LokiNet", without times: it does not say by whose clock its date is. A claim's
// date is rounded to the 1/300 of a second, as LokiNet's column has it. A release leaves nothing but the claim's fence, if
// that is ahead of the server's clock: see the package comment.
type Handler struct {
	*shared
	owned *sql.DB // what Open opened
}

var (
	_ loki.LockHandler = (*Handler)(nil)
	_ loki.Granter     = (*Handler)(nil)
	_ loki.Extender    = (*Handler)(nil)
	_ loki.Releaser    = (*Handler)(nil)
	_ loki.Inspector   = (*Handler)(nil)
	_ loki.Validator   = (*Handler)(nil)
)

// New returns a handler on a database that the caller has opened, and that the caller closes. The driver is go-mssqldb,
// under whatever name it was opened and whatever is wrapped around it. Nothing is sent yet, so a database that is down
// is no reason to fail.
//
// What is wrong with the arguments is returned by [Handler.Validate], which loki's Build asks, and by every method.
func New(db *sqlx.DB, opts ...Option) *Handler {
	var (
		pool *sql.DB
		d    driver.Driver
	)
	if db != nil && db.DB != nil {
		pool, d = db.DB, db.Driver()
	}
	return &Handler{shared: sqlhandler.New(pool, newDialect(choose(opts), d))}
}

// Open returns a handler with a database of its own, which [Handler.Close] closes. dsn is one of go-mssqldb's, such as
// "sqlserver://user:password@host?database=app". Nothing is dialled yet: a server that is down shows at the first call,
// as a store that is unavailable. A dsn or an option that cannot work is an error, and then there is no handler. The error
// repeats no part of dsn.
//
// Here a login ends with the context of its call. A database that go-mssqldb has opened by itself waits for a server that
// takes the connection and says nothing for as long as that goes on, or for the dsn's "connection timeout", if it has one;
// the call is over in time all the same, as loki leaves it behind.
//
// For a login through Microsoft Entra ID open the database with go-mssqldb's azuread package and give it to [New].
func Open(dsn string, opts ...Option) (*Handler, error) {
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	db := sqlx.NewDb(sql.OpenDB(newConnector(config)), "sqlserver")
	h := New(db, opts...)
	h.owned = db.DB
	if err := h.Validate(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Validate returns what is wrong with the arguments that the handler was made with, every mistake at once. It sends
// nothing.
func (h *Handler) Validate() error {
	if h == nil || h.shared == nil {
		return errors.New("mssqlhandler: this Handler was not made by New or Open")
	}
	return h.shared.Validate()
}

// Close closes the database if [Open] opened it. One that was given to [New] stays open.
func (h *Handler) Close() error {
	if h == nil || h.owned == nil {
		return nil
	}
	return h.owned.Close()
}
