package postgreshandler

// This file is the handler: the shared one with this package's dialect, its listeners, and the database that Open opens
// for it.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgresdsn"
	"github.com/lokilock/loki/sqlhandler"
)

// shared is what every handler of a SQL database has: Lock, Release, ReleaseHeld, Grant, Extend, Inspect, History and Validate.
type shared = sqlhandler.Handler

// Handler keeps locks in one table. Make one with [New] or [Open]. It is safe for concurrent use and must not be
// copied. Its operations are those of [sqlhandler.Handler], and [Handler.Notify].
//
// A release leaves nothing but the claim's fence, if that is ahead of the server's clock: see the package comment.
type Handler struct {
	*shared
	listeners *listeners
	owned     *sql.DB // what Open opened
}

var (
	_ loki.LockHandler = (*Handler)(nil)
	_ loki.Granter     = (*Handler)(nil)
	_ loki.Extender    = (*Handler)(nil)
	_ loki.Releaser    = (*Handler)(nil)
	_ loki.Notifier    = (*Handler)(nil)
	_ loki.Inspector   = (*Handler)(nil)
	_ loki.Validator   = (*Handler)(nil)
)

// New returns a handler on a database that the caller has opened, and that the caller closes. The driver is pgx (package
// stdlib), under whatever name it was opened and whatever is wrapped around it. Nothing is sent yet, so a database that
// is down is no reason to fail.
//
// Its sessions' client_encoding has to be UTF8, as it is unless the database is in another encoding or somebody chose one:
// then client_encoding=UTF8 belongs in the data source name. A call in any other is refused.
//
// What is wrong with the arguments is returned by [Handler.Validate], which loki's Build asks, and by every method.
func New(db *sql.DB, opts ...Option) *Handler {
	s := choose(opts)
	var d driver.Driver
	if db != nil {
		d = db.Driver()
	}
	return &Handler{shared: sqlhandler.New(db, newDialect(s, d)), listeners: newListeners(db, s)}
}

// Open returns a handler with a database of its own, which [Handler.Close] closes. dsn is one of pgx's, such as
// "postgres://user:password@host/app" or "host=a,b dbname=app target_session_attrs=read-write". Nothing is dialled yet: a
// server that is down shows at the first call, as a store that is unavailable. The sessions' client_encoding is UTF8,
// whatever the dsn has. A dsn or an option that cannot work is an
// error, and then there is no handler.
func Open(dsn string, opts ...Option) (*Handler, error) {
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgreshandler: %w", err)
	}
	// A pooled connection that has died is found by using it; pgx would ask it first, which is another round trip.
	unasked := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
	db := stdlib.OpenDB(*config, unasked)
	h := New(db, opts...)
	h.owned = db
	if err := h.Validate(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// parseDSN reads a data source name. Its error repeats no part of it.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	config, err := postgresdsn.Parse(dsn)
	if err != nil {
		return nil, err
	}
	speakUTF8(config)
	return config, nil
}

// speakUTF8 has the sessions of config take texts as they are sent. In another encoding a key would be another text than
// it is in the sessions of other instances, and pgx refuses the simple protocol, which LISTEN goes by, for it and for
// strings in which a backslash is no character.
func speakUTF8(config *pgx.ConnConfig) {
	if config.RuntimeParams == nil {
		config.RuntimeParams = make(map[string]string)
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["standard_conforming_strings"] = "on"
}

// Validate returns what is wrong with the arguments that the handler was made with, every mistake at once. It sends
// nothing.
func (h *Handler) Validate() error {
	if h == nil || h.shared == nil {
		return errors.New("postgreshandler: this Handler was not made by New or Open")
	}
	return h.shared.Validate()
}

// Close closes the database if [Open] opened it. One that was given to [New] stays open. A connection that listens, for
// callers of [Handler.Notify], is closed when the last of their contexts ends.
func (h *Handler) Close() error {
	if h == nil || h.owned == nil {
		return nil
	}
	return h.owned.Close()
}
