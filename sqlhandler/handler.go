package sqlhandler

// This file is the handler: each method is one statement, sent once.

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

// Handler keeps locks in one table of a database. Make one with [New]. It is safe for concurrent use and must not be
// copied.
type Handler struct {
	db      *sql.DB
	dialect Dialect
	wrong   error // what New was given that cannot work; then nothing is ever sent

	answered  atomic.Bool // the database is there; see [Unopened]
	traffic   *traffic
	sweepFrom atomic.Pointer[string]
}

var (
	_ loki.LockHandler = (*Handler)(nil)
	_ loki.Granter     = (*Handler)(nil)
	_ loki.Extender    = (*Handler)(nil)
	_ loki.Releaser    = (*Handler)(nil)
	_ loki.Inspector   = (*Handler)(nil)
	_ loki.Validator   = (*Handler)(nil)
)

// New returns a handler that speaks d to a database which the caller has opened, and which the caller closes. Nothing is
// sent yet, so a database that is down is no reason to fail.
//
// What is wrong with the arguments is returned by [Handler.Validate], which loki's Build asks, and by every method.
func New(db *sql.DB, d Dialect) *Handler {
	return &Handler{db: db, dialect: d, wrong: d.wrong(db == nil), traffic: newTraffic(db)}
}

// Lock is [Handler.Grant] told in one word.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := h.grant(ctx, "lock", c)
	return g.Held, err
}

// Release forgets c if its token still holds. With a history, what is left is the run that it was. On the way it may
// remove a few rows of other keys that expired long ago.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	_, err := h.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld is [Handler.Release], and reports whether c held until then. A claim that had expired did not, even if nobody
// has taken its key since. It returns true wherever the statement may have been sent more than once.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	sent := 0
	g, err := h.attempt(ctx, "release", c, h.checkHeld, func(a *attempt) (loki.Grant, error) {
		call := h.call(c)
		if from := h.sweepFrom.Load(); from != nil {
			call.SweepFrom = *from
		}
		sent++
		var (
			next sql.NullString
			held bool
		)
		found, err := h.dialect.Release.one(a.ctx, a.connect, call, releaseAnswer, &next, &held)
		if err == nil && !found && h.dialect.Overtaken { // which is an answer: nothing was changed
			found, err = h.dialect.Release.one(a.ctx, a.connect, call, releaseAnswer, &next, &held)
		}
		if err == nil && found {
			h.sweepFrom.Store(&next.String)
		}
		return loki.Grant{Held: held || c.Repeated || sent > 1 || a.followed.Load()}, err
	})
	return g.Held, err
}

// Grant records c if nobody else holds its key, in one round trip. A claim that comes back after its expiry, when
// nobody has taken the key, is a new grant with a new fence. [loki.Grant.Released] is always empty: a row that is
// released is gone.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	return h.grant(ctx, "grant", c)
}

func (h *Handler) grant(ctx context.Context, op string, c loki.Claim) (loki.Grant, error) {
	return h.attempt(ctx, op, c, h.checkClaim, func(a *attempt) (loki.Grant, error) {
		if c.Supersedes == c.Token {
			c.Supersedes = ""
		}
		var (
			held  bool
			fence sql.NullInt64
			by    row
		)
		found, err := h.dialect.Grant.one(a.ctx, a.connect, h.call(c), grantAnswer, &held, &fence, &by.holder, &by.since, &by.until, &by.left)
		switch {
		case err == nil && !found && h.dialect.Overtaken:
			err = errOvertaken
		case err == nil && !found:
			err = grantAnswer.none()
		case held:
			return loki.Grant{Held: true, Fence: fence.Int64}, err
		}
		return loki.Grant{HeldBy: by.heldBy()}, err
	})
}

// Extend renews c if it still holds. A claim that has expired does not, even if nobody has taken the key since.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := h.attempt(ctx, "extend", c, h.checkClaim, func(a *attempt) (loki.Grant, error) {
		var held bool
		found, err := h.dialect.Extend.one(a.ctx, a.connect, h.call(c), extendAnswer, &held)
		if err == nil && !found {
			err = extendAnswer.none()
		}
		return loki.Grant{Held: held}, err
	})
	return g.Held, err
}

// Inspect says who holds key.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	var (
		by   row
		held bool
	)
	err := h.do(ctx, "inspect", key, func() (err error) {
		if err := h.checkKey(key); err != nil {
			return err
		}
		by = row{}
		held, err = h.dialect.Inspect.one(ctx, h.connect(ctx), h.call(loki.Claim{Key: key}), inspectAnswer, &by.holder, &by.since, &by.until, &by.left)
		return err
	})
	if err != nil || !held {
		return loki.Holder{}, false, err
	}
	return by.heldBy(), true, nil
}

// Validate returns what is wrong with the arguments that the handler was made with, every mistake at once. It sends
// nothing.
func (h *Handler) Validate() error {
	if h == nil || h.db == nil && h.wrong == nil {
		return errors.New("sqlhandler: this Handler was not made by New")
	}
	return h.wrong
}

// connect is where a statement gets its connection from that is no claim's.
func (h *Handler) connect(ctx context.Context) connector {
	return func() (*sql.Conn, error) { return connect(ctx, h.db, h.db.Conn) }
}

// call is what a statement is sent for c for.
func (h *Handler) call(c loki.Claim) Call {
	c.Key = h.stored(c.Key)
	return Call{Claim: c}
}

// row is a claim as the table tells it. Times are in microseconds.
type row struct {
	holder             sql.NullString
	since, until, left sql.NullInt64
}

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
