package sqlhandler

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

// Base is a handler that keeps locks in one table of a database, by the statements of its dialect. Make one with [NewBase].
// It is safe for concurrent use and must not be copied.
type Base struct {
	db      *sql.DB
	dialect Dialect
	invalid error // what is wrong with NewBase's arguments; then nothing is ever sent

	answered  atomic.Bool // the database is there; see [VerdictUnopened]
	traffic   *traffic
	sweepFrom atomic.Pointer[string]
}

var (
	_ loki.LockHandler = (*Base)(nil)
	_ loki.Granter     = (*Base)(nil)
	_ loki.Extender    = (*Base)(nil)
	_ loki.Releaser    = (*Base)(nil)
	_ loki.Inspector   = (*Base)(nil)
	_ loki.Validator   = (*Base)(nil)
)

// NewBase returns the Base of dialect d on a database that the caller has opened, and that the caller closes. It sends
// nothing, so a database that is down does not make it fail.
//
// [Base.Validate], which loki's Build calls, and every other method return what is wrong with the arguments.
func NewBase(db *sql.DB, d Dialect) *Base {
	return &Base{db: db, dialect: d, invalid: d.validate(db == nil), traffic: newTraffic(db)}
}

// Lock implements [loki.LockHandler]: it is [Base.Grant] without the details.
func (b *Base) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := b.grant(ctx, "lock", c)
	return g.Held, err
}

// Release implements [loki.LockHandler]: it is [Base.ReleaseHeld] without the report.
func (b *Base) Release(ctx context.Context, c loki.Claim) error {
	_, err := b.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld implements [loki.Releaser] by the Release statement, which may also remove a few rows of other keys that
// expired long ago. It reports whether c held until then: an expired claim did not, even if its key is still free. Where the
// statement may have been sent more than once it reports true.
func (b *Base) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	sent := 0
	g, err := b.attempt(ctx, "release", c, func(a *attempt) (loki.Grant, error) {
		call := Call{Claim: c, Ending: ending(c, !c.Unused)}
		if from := b.sweepFrom.Load(); from != nil {
			call.SweepFrom = *from
		}
		sent++
		var (
			next sql.NullString
			held bool
		)
		found, err := b.dialect.Release.one(a.ctx, a.connect, call, releaseAnswer, &next, &held)
		if err == nil && !found && b.dialect.Overtaken { // which is an answer: nothing was changed
			found, err = b.dialect.Release.one(a.ctx, a.connect, call, releaseAnswer, &next, &held)
		}
		if err == nil && found {
			b.sweepFrom.Store(&next.String)
		}
		return loki.Grant{Held: held || c.Repeated || sent > 1 || a.followed.Load()}, err
	})
	return g.Held, err
}

// Grant implements [loki.Granter] by the Grant statement. A claim that comes back after its expiry, while its key is still
// free, is a new grant with a new fencing token. [loki.Grant.Released] is always empty: the row of a released claim is gone.
func (b *Base) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	return b.grant(ctx, "grant", c)
}

func (b *Base) grant(ctx context.Context, op string, c loki.Claim) (loki.Grant, error) {
	return b.attempt(ctx, op, c, func(a *attempt) (loki.Grant, error) {
		if c.Supersedes == c.Token {
			c.Supersedes = ""
		}
		var (
			held  bool
			fence sql.NullInt64
			by    row
		)
		found, err := b.dialect.Grant.one(a.ctx, a.connect, Call{Claim: c, Ending: ending(c, c.Over)}, grantAnswer, &held, &fence, &by.holder, &by.since, &by.until, &by.left)
		switch {
		case err == nil && !found && b.dialect.Overtaken:
			err = errOvertaken
		case err == nil && !found:
			err = grantAnswer.none()
		case held:
			return loki.Grant{Held: true, Fence: fence.Int64}, err
		}
		return loki.Grant{HeldBy: by.heldBy()}, err
	})
}

// Extend implements [loki.Extender] by the Extend statement. An expired claim does not hold, even if its key is still free.
func (b *Base) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	g, err := b.attempt(ctx, "extend", c, func(a *attempt) (loki.Grant, error) {
		var held bool
		found, err := b.dialect.Extend.one(a.ctx, a.connect, Call{Claim: c, Ending: ending(c, c.Over)}, extendAnswer, &held)
		if err == nil && !found {
			err = extendAnswer.none()
		}
		return loki.Grant{Held: held}, err
	})
	return g.Held, err
}

// Inspect implements [loki.Inspector] by the Inspect statement.
func (b *Base) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	var (
		by   row
		held bool
	)
	err := b.do(ctx, "inspect", key, func() (err error) {
		if err := b.checkKey(key); err != nil {
			return err
		}
		by = row{}
		held, err = b.dialect.Inspect.one(ctx, b.connect(ctx), Call{Claim: loki.Claim{Key: key}}, inspectAnswer, &by.holder, &by.since, &by.until, &by.left)
		return err
	})
	if err != nil || !held {
		return loki.Holder{}, false, err
	}
	return by.heldBy(), true, nil
}

// Validate implements [loki.Validator]: it returns everything that is wrong with the arguments of [NewBase]. It sends
// nothing.
func (b *Base) Validate() error {
	if b == nil || b.db == nil && b.invalid == nil {
		return errors.New("sqlhandler: this Base was not made by NewBase")
	}
	return b.invalid
}

// Do makes a call of the store that is none of the dialect's statements, for a handler that can do more, such as Notify: a
// key that the store cannot tell from others is refused, the call is repeated as a statement would be, and its error is
// explained as theirs are. call may be called again until ctx ends. Errors name op.
func (b *Base) Do(ctx context.Context, op, key string, call func() error) error {
	return b.do(ctx, op, key, func() error {
		if err := b.checkKey(key); err != nil {
			return err
		}
		return call()
	})
}

// connect returns the connector of a statement that is sent for no claim.
func (b *Base) connect(ctx context.Context) connector {
	return func() (*connection, error) { return b.traffic.connect(ctx, toAcquire, false) }
}

// row is a claim as a statement answers it. Times are in microseconds.
type row struct {
	holder             sql.NullString
	since, until, left sql.NullInt64
}

func (r row) heldBy() loki.Holder {
	return loki.Holder{ID: r.holder.String, Since: instant(r.since), Until: instant(r.until), Left: max(0, time.Duration(r.left.Int64)*time.Microsecond)}
}

// instant returns the zero time if the store does not know.
func instant(µs sql.NullInt64) time.Time {
	if !µs.Valid {
		return time.Time{}
	}
	return time.UnixMicro(µs.Int64).UTC()
}
