package loki

import "context"

// alone is the mode without a secondary: what the primary says, counts.
type alone struct{ *Locker }

func (m alone) acquire(ctx context.Context, r request) (*Lease, error) {
	ls := m.newLease(ctx, r)
	a, err := m.askPrimary(ctx, ls)
	switch {
	case err != nil:
		return nil, m.rollBack(ls, err)
	case a.err != nil:
		return nil, m.rollBack(ls, &notAcquiredError{key: r.key, why: noStore, errs: a.err, unavailable: true})
	}
	return m.startBy(ls, Primary, a)
}

func (m alone) renew(ctx context.Context, ls *Lease) renewal {
	a := m.renewInPrimary(ctx, ls, false)
	switch {
	case a.err != nil:
		return notRenewed(a.err)
	case !a.Held:
		return lostBy(ErrNotHeld, lostRecord(Primary))
	}
	return renewedBy(Primary)
}

func (m alone) release(ls *Lease) {
	if m.primary.background.releaseNow(ls) == foundNothing {
		ls.wasLost(Primary)
	}
}
