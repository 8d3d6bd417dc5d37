package mssqlhandler

// This file is the handler: each method is one batch, sent once.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
)

// Handler keeps locks in one table. Make one with [New] or [Open]. It is safe for concurrent use and must not be
// copied.
type Handler struct {
	settings
	db    *sqlx.DB
	owned bool
	sql   statements
	wrong error // what New was given that cannot work; then nothing is ever sent
}

var (
	_ loki.LockHandler = (*Handler)(nil)
	_ loki.Granter     = (*Handler)(nil)
	_ loki.Extender    = (*Handler)(nil)
	_ loki.Inspector   = (*Handler)(nil)
	_ loki.Validator   = (*Handler)(nil)
)

// New returns a handler on a database that the caller has opened, and that the caller closes. The driver is go-mssqldb,
// under whatever name it was opened and whatever is wrapped around it. Nothing is sent yet, so a database that is down
// is no reason to fail.
//
// What is wrong with the arguments is returned by [Handler.Validate], which loki's Build asks, and by every method.
func New(db *sqlx.DB, opts ...Option) *Handler {
	h := &Handler{db: db}
	h.settings, h.wrong = choose(opts)
	if db == nil || db.DB == nil {
		h.wrong = errors.Join(h.wrong, errors.New("mssqlhandler: the database is nil: open one with sqlx.Open, or use mssqlhandler.Open"))
		return h
	}
	h.sql = newStatements(h.table, db.Driver())
	return h
}

// Open returns a handler with a database of its own, which [Handler.Close] closes. dsn is one of go-mssqldb's, such as
// "sqlserver://user:password@host?database=app". Nothing is dialled yet: a server that is down shows at the first call,
// as a store that is unavailable. A dsn or an option that cannot work is an error, and then there is no handler.
//
// For a login through Microsoft Entra ID open the database with go-mssqldb's azuread package and give it to [New].
func Open(dsn string, opts ...Option) (*Handler, error) {
	if err := checkDSN(dsn); err != nil {
		return nil, err
	}
	db, err := sqlx.Open("sqlserver", dsn)
	if err != nil {
		return nil, fmt.Errorf("mssqlhandler: the data source name cannot be used: %w", err)
	}
	h := New(db, opts...)
	h.owned = true
	if err := h.Validate(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Lock is [Handler.Grant] told in one word.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := h.grant(ctx, "lock", c)
	return g.Held, err
}

// Release forgets c if its token still holds. Nothing is left of it but its fence, if that is ahead of the server's clock:
// see the package comment.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	return h.do(ctx, "release", c.Key, func() error {
		if err := checkHeld(c); err != nil {
			return err
		}
		_, err := h.db.ExecContext(ctx, h.sql.release, stored(c.Key), text(c.Token), text(remembered))
		return err
	})
}

// Grant records c if nobody else holds its key, in one round trip. A claim that comes back after its expiry, when
// nobody has taken the key, is a new grant with a new fence. [loki.Grant.Released] is always empty: a row that is
// released is gone.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	return h.grant(ctx, "grant", c)
}

func (h *Handler) grant(ctx context.Context, op string, c loki.Claim) (loki.Grant, error) {
	var r row
	err := h.do(ctx, op, c.Key, func() error {
		if err := checkClaim(c); err != nil {
			return err
		}
		r = row{}
		seconds, milliseconds := expiry(c.Expiry)
		found, err := query(ctx, h.db.DB, h.sql.grant,
			[]any{stored(c.Key), text(c.Token), text(c.Holder), seconds, milliseconds, c.Fence, text(c.Supersedes), h.lokinetSeconds, text(remembered)},
			[]any{&r.held, &r.fence, &r.holder, &r.since, &r.until, &r.left})
		if err == nil && !found {
			err = errNoAnswer
		}
		return err
	})
	switch {
	case err != nil:
		return loki.Grant{}, err
	case r.held:
		return loki.Grant{Held: true, Fence: r.fence}, nil
	}
	return loki.Grant{HeldBy: r.heldBy()}, nil
}

// Extend renews c if it still holds. A claim that has expired does not, even if nobody has taken the key since.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	var held bool
	err := h.do(ctx, "extend", c.Key, func() error {
		if err := checkClaim(c); err != nil {
			return err
		}
		seconds, milliseconds := expiry(c.Expiry)
		found, err := query(ctx, h.db.DB, h.sql.extend,
			[]any{stored(c.Key), text(c.Token), seconds, milliseconds, c.Fence}, []any{&held})
		if err == nil && !found {
			err = errNoAnswer
		}
		return err
	})
	return held && err == nil, err
}

// Inspect says who holds key. A row that LokiNet wrote is held by "LokiNet", without times: it does not say by whose
// clock its date is.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	var (
		r    row
		held bool
	)
	err := h.do(ctx, "inspect", key, func() (err error) {
		if err := checkKey(key); err != nil {
			return err
		}
		r = row{}
		held, err = query(ctx, h.db.DB, h.sql.inspect,
			[]any{stored(key), h.lokinetSeconds}, []any{&r.holder, &r.since, &r.until, &r.left})
		return err
	})
	if err != nil || !held {
		return loki.Holder{}, false, err
	}
	return r.heldBy(), true, nil
}

// Validate returns what is wrong with the arguments that the handler was made with, every mistake at once. It sends
// nothing.
func (h *Handler) Validate() error {
	if h == nil || h.db == nil && h.wrong == nil {
		return errors.New("mssqlhandler: this Handler was not made by New or Open")
	}
	return h.wrong
}

// Close closes the database if [Open] opened it. One that was given to [New] stays open.
func (h *Handler) Close() error {
	if h == nil || !h.owned {
		return nil
	}
	return h.db.Close()
}

// heldBy is the row as a store tells it.
func (r row) heldBy() loki.Holder {
	return loki.Holder{ID: r.holder.String, Since: instant(r.since), Until: instant(r.until), Left: max(0, time.Duration(r.left.Int64)*time.Microsecond)}
}

// instant is the zero time where the store does not know.
func instant(µs sql.NullInt64) time.Time {
	if !µs.Valid {
		return time.Time{}
	}
	return time.UnixMicro(µs.Int64).UTC()
}
