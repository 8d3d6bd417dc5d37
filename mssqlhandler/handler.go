package mssqlhandler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

// Handler keeps locks in one table of SQL Server. Make one with [New] or [Open]. It is safe for concurrent use and must not
// be copied. Each operation is one round trip, and changes nothing if ctx has ended before.
//
// A row that LokiNet wrote is held by "LokiNet", without times: it does not say by whose clock its date is.
type Handler struct {
	base  *sqlhandler.Base
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

// A burst of callers uses up to 24 connections at once (16 for acquisitions, 8 for renewals and releases, see
// docs/operations.md). database/sql keeps two of them by default and closes the others, which the next burst then waits for:
// a new connection is TCP, TLS and a login, and its first statement is the slowest. Those that are idle for longer than any
// burst lasts are closed anyway, so that quiet instances leave the server its sessions.
const (
	maxIdleConns    = 24
	maxConnIdleTime = 5 * time.Minute
)

// New returns a handler on a database that the caller has opened, and that the caller closes. The driver is go-mssqldb, under
// any name, also if another driver is wrapped around it. New sends nothing, so a database that is down does not make it fail.
//
// [Handler.Validate], which loki's Build calls, and every other method return what is wrong with the arguments.
func New(db *sqlx.DB, opts ...Option) *Handler {
	var (
		pool *sql.DB
		d    driver.Driver
	)
	if db != nil && db.DB != nil {
		pool, d = db.DB, db.Driver()
	}
	return &Handler{base: sqlhandler.NewBase(pool, newDialect(choose(opts), d))}
}

// Open returns a handler with a database of its own, which [Handler.Close] closes. dsn is one of go-mssqldb's, such as
// "sqlserver://user:password@host?database=app". Open dials nothing: a server that is down shows at the first call, as an
// unavailable store. A dsn or an option that cannot work is an error, which repeats no part of dsn.
//
// A login ends five seconds after its call at the latest. A database that was opened through database/sql waits for a server that
// accepts the connection and does not answer until the dsn's "connection timeout", or forever; the call ends in time anyway.
//
// For a login through Microsoft Entra ID open the database with go-mssqldb's azuread package and give it to [New].
func Open(dsn string, opts ...Option) (*Handler, error) {
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	db := sqlx.NewDb(sql.OpenDB(newConnector(config)), "sqlserver")
	db.SetMaxIdleConns(maxIdleConns)
	db.SetConnMaxIdleTime(maxConnIdleTime)
	h := New(db, opts...)
	h.owned = db.DB
	if err := h.Validate(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Lock implements [loki.LockHandler]: it inserts a row for c.Key, or replaces the row of a claim that is over or that
// c.Supersedes. It is [Handler.Grant] without the details.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	return h.shared().Lock(ctx, c)
}

// Grant implements [loki.Granter]: it is Lock, and returns the claim's fencing token or else who holds the key, since when and
// for how long yet. A claim that comes back after its expiry, while its key is still free, is a new grant with a new fencing
// token. [loki.Grant.Released] is always empty: the row of a released claim is gone.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	return h.shared().Grant(ctx, c)
}

// Extend implements [loki.Extender]: it sets the expiry of c's row, if that is there and has not expired. It never inserts one.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	return h.shared().Extend(ctx, c)
}

// Release implements [loki.LockHandler]: it deletes the row that has c's key and token, with [WithHistory] into the history.
// It also looks at the next few rows of the table, and deletes those that expired more than a minute ago.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error { return h.shared().Release(ctx, c) }

// ReleaseHeld implements [loki.Releaser]: it is Release, and reports whether c held until then. An expired claim did not, even
// if its key is still free. Where the statement may have been sent more than once it reports true.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	return h.shared().ReleaseHeld(ctx, c)
}

// Inspect implements [loki.Inspector]: it reads who holds key, and changes nothing. [loki.Holder.Since] is rounded to 1/300 of
// a second, as LokiNet's column has it.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	return h.shared().Inspect(ctx, key)
}

// History returns the latest claims of key, the newest first and limit at most, if the handler was made with [WithHistory];
// else the error matches [errors.ErrUnsupported]. The first one is the one that holds, if any. A claim is in it from its
// grant on.
func (h *Handler) History(ctx context.Context, key string, limit int) ([]sqlhandler.Run, error) {
	return h.shared().History(ctx, key, limit)
}

// Validate implements [loki.Validator]: it returns everything that is wrong with the arguments of [New]. It sends nothing.
func (h *Handler) Validate() error {
	if h == nil || h.base == nil {
		return errors.New("mssqlhandler: this Handler was not made by New or Open")
	}
	return h.base.Validate()
}

// shared returns nil for a nil Handler. The methods of a nil Base return an error.
func (h *Handler) shared() *sqlhandler.Base {
	if h == nil {
		return nil
	}
	return h.base
}

// Close closes the database if [Open] opened it. One that was given to [New] stays open.
func (h *Handler) Close() error {
	if h == nil || h.owned == nil {
		return nil
	}
	return h.owned.Close()
}
