package postgreshandler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgresdsn"
	"github.com/lokilock/loki/sqlhandler"
)

// Handler keeps locks in one table of PostgreSQL. Make one with [New] or [Open]. It is safe for concurrent use and must not
// be copied. Each operation is one round trip, and changes nothing if ctx has ended before.
type Handler struct {
	base      *sqlhandler.Base
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

// A burst of callers uses up to 24 connections at once (16 for acquisitions, 8 for renewals and releases, see
// docs/postgres.md). database/sql keeps two of them by default and closes the others, which the next burst then waits for: a
// new connection is TCP, TLS, a login and a process of the server, and prepares its statements anew. Those that are idle for
// longer than any burst lasts are closed anyway, so that quiet instances leave the server its max_connections.
const (
	maxIdleConns    = 24
	maxConnIdleTime = 5 * time.Minute
)

// New returns a handler on a database that the caller has opened, and that the caller closes. The driver is pgx (package
// stdlib), under any name, also if another driver is wrapped around it. New sends nothing, so a database that is down does
// not make it fail.
//
// The sessions' client_encoding must be UTF8, as it is unless the database has another encoding or one was chosen: then
// client_encoding=UTF8 belongs in the data source name. A call in any other is refused.
//
// [Handler.Validate], which loki's Build calls, and every other method return what is wrong with the arguments.
func New(db *sql.DB, opts ...Option) *Handler {
	s := choose(opts)
	var d driver.Driver
	if db != nil {
		d = db.Driver()
	}
	return &Handler{base: sqlhandler.NewBase(db, newDialect(s, d)), listeners: newListeners(db, s)}
}

// Open returns a handler with a database of its own, which [Handler.Close] closes. dsn is one of pgx's, such as
// "postgres://user:password@host/app" or "host=a,b dbname=app target_session_attrs=read-write". Open dials nothing: a server
// that is down shows at the first call, as an unavailable store. The sessions' client_encoding is UTF8, whatever the dsn has.
// A dsn or an option that cannot work is an error.
func Open(dsn string, opts ...Option) (*Handler, error) {
	config, err := parseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgreshandler: %w", err)
	}
	// A pooled connection that has died is found by using it; pgx would ask it first, which is another round trip.
	unasked := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
	db := stdlib.OpenDB(*config, unasked)
	db.SetMaxIdleConns(maxIdleConns)
	db.SetConnMaxIdleTime(maxConnIdleTime)
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

// Release implements [loki.LockHandler]: it deletes the row that has c's key and token, with [WithHistory] into the history,
// and notifies those who wait, unless c.Quiet. A row whose fencing token is ahead of the server's clock stays, as expired, until
// the clock has passed it. Release also looks at one page of the table, and deletes what expired there more than a minute ago.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error { return h.shared().Release(ctx, c) }

// ReleaseHeld implements [loki.Releaser]: it is Release, and reports whether c held until then. An expired claim did not, even
// if its key is still free. Where the statement may have been sent more than once it reports true.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	return h.shared().ReleaseHeld(ctx, c)
}

// Inspect implements [loki.Inspector]: it reads who holds key. It locks nothing and changes nothing.
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
		return errors.New("postgreshandler: this Handler was not made by New or Open")
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

// Close closes the database if [Open] opened it. One that was given to [New] stays open. A connection that listens, for
// callers of [Handler.Notify], is closed when the last of their contexts ends.
func (h *Handler) Close() error {
	if h == nil || h.owned == nil {
		return nil
	}
	return h.owned.Close()
}
