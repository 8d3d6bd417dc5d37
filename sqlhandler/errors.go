package sqlhandler

// This file is what can go wrong: what is repeated, what is an outage, what is a mistake, and how it is told.

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

// errStale is what a statement ends with that a driver did not send, because the pooled connection for it had died.
var errStale = fmt.Errorf("the pooled connection had died: %w", driver.ErrBadConn)

// errOvertaken is what a grant ends with that did not see what came before it; see [Dialect.Overtaken].
var errOvertaken = errors.New("the key changed hands while this waited its turn, each time that it was tried")

// do makes one call of the store. The call may be made again, as long as ctx lasts: every statement is right if it runs
// twice.
//
//   - A call that lost against another session is repeated once: nothing was changed. A release is repeated more often,
//     because nobody comes back for it, and so is a grant that was overtaken, because the next look most likely decides.
//   - Pooled connections that died with the server, in a restart or an idle cut, fail at their first use, and a driver
//     tells database/sql so only if the sending failed. Any that was idle may be one of those, so the call is repeated
//     until a connection was a new one.
func (h *Handler) do(ctx context.Context, op, key string, call func() error) error {
	if err := h.Validate(); err != nil {
		return err
	}
	return h.explain(ctx, op, key, true, h.repeat(ctx, op, call))
}

// attempt is do for a statement that is sent for a claim, in its turn; see [traffic]. What call returns beside an error
// does not count.
func (h *Handler) attempt(ctx context.Context, op string, c loki.Claim, check func(loki.Claim) error, call func(*attempt) (loki.Grant, error)) (loki.Grant, error) {
	if err := h.Validate(); err != nil {
		return loki.Grant{}, err
	}
	if err := check(c); err != nil {
		return loki.Grant{}, h.explain(ctx, op, c.Key, true, err) // it was not sent, but it is no outage
	}
	a, err := h.traffic.begin(ctx, op, c)
	if err == nil && !a.answered {
		err = a.end(h.repeat(a.ctx, op, func() (err error) {
			a.answer, err = call(a)
			return err
		}))
	}
	if err != nil {
		return loki.Grant{}, h.explain(ctx, op, c.Key, a.sent, err)
	}
	return a.answer, h.explain(ctx, op, c.Key, a.sent, nil)
}

func (h *Handler) repeat(ctx context.Context, op string, call func() error) error {
	err := call()
	victim, dead := 1, 0
	if op == "release" || errors.Is(err, errOvertaken) {
		victim = 3
	}
	if err != nil && h.verdict(err) == Broken {
		dead = 1 + h.db.Stats().Idle
	}
	for err != nil && ctx.Err() == nil {
		if v := h.verdict(err); v == Again && victim > 0 {
			victim--
		} else if v == Broken && dead > 0 {
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
func (h *Handler) explain(ctx context.Context, op, key string, sent bool, err error) error {
	if err == nil {
		h.answered.Store(true)
		return nil
	}
	unavailable := loki.Unavailable
	if !sent {
		unavailable = loki.NotSent
	}
	conceal := h.dialect.Conceal
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
	what := fmt.Sprintf("%s: %s of %q in %s", h.dialect.Name, op, key, h.dialect.Table)
	if _, advice := h.dialect.Judge(judged); advice != "" {
		what += ": " + advice
	}
	told := fmt.Errorf("%s: %w", what, repeated)
	if v := h.verdict(err); v == Unavailable || v == Broken || v == Again {
		return unavailable(told)
	}
	return told
}

// verdict is the dialect's, or that of what every database has in common.
func (h *Handler) verdict(err error) Verdict {
	switch v, _ := h.dialect.Judge(err); {
	case v == Unopened && h.answered.Load():
		return Unavailable
	case v == Unopened:
		return Mistake
	case v != Unknown:
		return v
	}
	unsent, isUnsent := errors.AsType[*noConnection](err)
	switch {
	case isUnsent && unsent.cause != nil: // such as a login that one of two servers refused, while the other was silent
		if v, _ := h.dialect.Judge(unsent.cause); v == Mistake {
			return Mistake
		}
		return Unavailable
	case errors.Is(err, errOvertaken):
		return Again
	case errors.Is(err, errStale):
		return Broken
	case isUnsent, errors.Is(err, errFollowed):
		return Unavailable
	}
	var resolve *net.DNSError
	var operation *net.OpError
	var network net.Error
	switch {
	// What database/sql calls a bad connection it has retried. A connection that could not be made is no reason to try
	// at once again.
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.As(err, &resolve), errors.As(err, &operation) && operation.Op == "dial":
		return Unavailable
	case errors.As(err, &network) && loki.IsUnavailable(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Broken
	case loki.IsUnavailable(err):
		return Unavailable
	}
	return Mistake
}

// Do makes a call of h's store that is none of its statements, as a handler does that is made of h and can do more: key
// is checked, the call is repeated where one of the statements would be, and its error is told as theirs are. call may
// be called again until ctx ends.
func Do(ctx context.Context, h *Handler, op, key string, call func() error) error {
	return h.do(ctx, op, key, func() error {
		if err := h.checkKey(key); err != nil {
			return err
		}
		return call()
	})
}
