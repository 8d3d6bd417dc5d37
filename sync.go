package loki

import (
	"context"
	"errors"
	"time"
)

// inSync is the mode in which both stores have to agree before fn starts, and the secondary alone while the primary is
// unavailable. The secondary's record protects the lease, so that is authoritative; the primary keeps most callers from it.
type inSync struct{ *Locker }

func (m inSync) acquire(ctx context.Context, r request) (*Lease, error) {
	if refusal := m.primary.health.refusal(r.key); refusal != nil {
		ls := m.newLease(ctx, r)
		ls, err := m.bySecondary(ctx, ls, m.primary.wrap(OpLock, ls.claim, refusal))
		m.primary.health.bypassed()
		return ls, err
	}
	ls := m.newLease(ctx, r)
	a, err := m.askPrimary(ctx, ls)
	switch {
	case err != nil:
		return nil, m.rollBack(ls, err)
	case a.err != nil:
		return m.bySecondary(ctx, ls, a.err)
	}
	ls.grantedBy(a)
	// For the whole expiry, not for what is left of the primary's: a request for less that is abandoned, and lands after the
	// next renewal, would end the record before the lease.
	b, by := m.askWhileRefused(ctx, ls, time.Time{}, trusted(r.expiry))
	switch {
	case ctx.Err() != nil:
		return nil, m.rollBackNow(ctx, ls, newEndedError(ctx, r.key))
	case b.err == nil && b.Held:
		return m.startBy(ls, Secondary, b)
	case b.err == nil:
		return nil, m.backOff(ctx, ls, b.HeldBy)
	case by != nil: // silence does not revoke what the secondary said before
		return nil, m.backOff(ctx, ls, *by)
	}
	if errors.Is(b.err, errContended) {
		ls.backsOff()
		return nil, m.rollBackNow(ctx, ls, busyBy(r.key, Grant{Contended: true}))
	}
	why := "the secondary is unavailable, and MirrorSync needs it"
	if !IsUnavailable(b.err) {
		why = "the secondary refused with a permanent error, and MirrorSync needs it"
	}
	return nil, m.rollBackNow(ctx, ls, &notAcquiredError{key: r.key, why: why, errs: b.err, unavailable: IsUnavailable(b.err)})
}

// renew needs the secondary's yes, and nothing else.
func (m inSync) renew(ctx context.Context, ls *Lease) renewal {
	stood := ls.stands(m.primary)
	a := m.renewInPrimary(ctx, ls, true)
	if ctx.Err() != nil || ls.ended() {
		return notRenewed(a.err)
	}
	b := m.renewInSecondary(ctx, ls)
	switch {
	case b.err != nil:
		return notRenewed(errors.Join(a.err, b.err))
	case !b.Held:
		return lostInSecondary(b)
	}
	if stood && a.err == nil && !a.Held {
		m.reportForgotten(ls)
	}
	return renewedBy(Secondary)
}

func (m inSync) release(ls *Lease) {
	if !ls.sent(m.secondary) { // the primary refused, or the caller had gone
		m.primary.background.releaseNow(ls)
		return
	}
	m.releaseBySecondary(ls)
}
