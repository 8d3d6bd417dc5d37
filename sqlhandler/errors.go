package sqlhandler

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/lokilock/loki"
)

// errStale is the error of a statement whose pooled connection had died, as the driver says before it has an answer.
var errStale = fmt.Errorf("the pooled connection had died: %w", driver.ErrBadConn)

// errOvertaken is the error of a grant that did not see what came before it; see [Dialect.Overtaken].
var errOvertaken = errors.New("the key changed hands while this waited its turn, each time that it was tried")

// do makes one call of the store. The call may be made again, as long as ctx lasts: every statement is right if it runs
// twice.
//
//   - A call that lost against another session is repeated once: nothing was changed. A release is repeated more often,
//     because nothing else repeats it, and so is a grant that was overtaken, because the next one most likely decides.
//   - Pooled connections that died with the server, in a restart or an idle cut, fail at their first use, and a driver
//     reports that to database/sql only if the sending failed. Any that was idle may be one of those, so the call is repeated
//     until a connection was a new one.
func (b *Base) do(ctx context.Context, op, key string, call func() error) error {
	if err := b.Validate(); err != nil {
		return err
	}
	return b.explain(ctx, op, key, true, b.repeat(ctx, op, call))
}

// attempt is do for a statement that is sent for a claim, in its turn; see [traffic]. What call returns beside an error
// does not count.
func (b *Base) attempt(ctx context.Context, op string, c loki.Claim, call func(*attempt) (loki.Grant, error)) (loki.Grant, error) {
	if err := b.Validate(); err != nil {
		return loki.Grant{}, err
	}
	if err := b.checkClaim(c); err != nil {
		return loki.Grant{}, b.explain(ctx, op, c.Key, true, err) // it was not sent, but it is no outage
	}
	a, err := b.traffic.begin(ctx, op, c)
	if err == nil && !a.answered {
		err = a.end(b.repeat(a.ctx, op, func() (err error) {
			a.answer, err = call(a)
			return err
		}))
	}
	if err != nil {
		return loki.Grant{}, b.explain(ctx, op, c.Key, a.sent, err)
	}
	return a.answer, b.explain(ctx, op, c.Key, a.sent, nil)
}

func (b *Base) repeat(ctx context.Context, op string, call func() error) error {
	err := call()
	victim, dead := 1, 0
	if op == "release" || errors.Is(err, errOvertaken) {
		victim = 3
	}
	if err != nil && b.verdict(err) == VerdictBroken {
		dead = 1 + b.db.Stats().Idle
	}
	for err != nil && ctx.Err() == nil {
		if v := b.verdict(err); v == VerdictRetry && victim > 0 {
			victim--
		} else if v == VerdictBroken && dead > 0 {
			dead--
		} else {
			break
		}
		err = call()
	}
	return err
}

// explain returns err with what happened to which key in which table, and what to do about it. It marks outages, and with
// [loki.NotSent] those of a statement that may not have been sent at all.
func (b *Base) explain(ctx context.Context, op, key string, sent bool, err error) error {
	if err == nil {
		b.answered.Store(true)
		return nil
	}
	unavailable := loki.Unavailable
	if !sent {
		unavailable = loki.NotSent
	}
	conceal := b.dialect.Conceal
	if conceal == nil {
		conceal = func(err error) error { return err }
	}
	judged, repeated := err, conceal(err)
	if unsent, ok := errors.AsType[*noConnection](err); ok && unsent.cause != nil {
		judged = unsent.cause
		repeated = fmt.Errorf("%w: %s", repeated, conceal(judged).Error())
	}
	if ended := ctx.Err(); ended != nil {
		if !errors.Is(repeated, ended) {
			repeated = fmt.Errorf("%w: %w", ended, repeated) // the driver reports what became of the connection instead
		}
		if sent {
			return repeated
		}
		return unavailable(repeated)
	}
	what := fmt.Sprintf("%s: %s of %q in %s", b.dialect.Name, op, key, b.dialect.Table)
	if _, advice := b.dialect.Judge(judged); advice != "" {
		what += ": " + advice
	}
	explained := fmt.Errorf("%s: %w", what, repeated)
	if v := b.verdict(err); v == VerdictUnavailable || v == VerdictBroken || v == VerdictRetry {
		return unavailable(explained)
	}
	return explained
}

// verdict is the dialect's, or that of what every database has in common.
func (b *Base) verdict(err error) Verdict {
	switch v, _ := b.dialect.Judge(err); {
	case v == VerdictUnopened && b.answered.Load():
		return VerdictUnavailable
	case v == VerdictUnopened:
		return VerdictPermanent
	case v != VerdictUnknown:
		return v
	}
	unsent, isUnsent := errors.AsType[*noConnection](err)
	switch {
	case isUnsent && unsent.cause != nil: // such as a login that one of two servers refused, while the other was silent
		if v, _ := b.dialect.Judge(unsent.cause); v == VerdictPermanent {
			return VerdictPermanent
		}
		return VerdictUnavailable
	case errors.Is(err, errOvertaken):
		return VerdictRetry
	case errors.Is(err, errStale):
		return VerdictBroken
	case isUnsent, errors.Is(err, errFollowed):
		return VerdictUnavailable
	}
	var resolve *net.DNSError
	var operation *net.OpError
	var network net.Error
	switch {
	// What database/sql calls a bad connection it has retried. A connection that could not be made is no reason to try
	// at once again.
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.As(err, &resolve), errors.As(err, &operation) && operation.Op == "dial":
		return VerdictUnavailable
	case errors.As(err, &network) && loki.IsUnavailable(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return VerdictBroken
	case loki.IsUnavailable(err):
		return VerdictUnavailable
	}
	return VerdictPermanent
}
