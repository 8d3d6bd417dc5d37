package loki

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// mode is how a lock is acquired, renewed and released with the stores that there are. Each mode is a file: alone, async
// and sync.
type mode interface {
	// acquire tries once. It returns a lease that has been started, or an error: then what may have been recorded is being
	// rolled back, in the background unless the caller has to wait for it.
	acquire(ctx context.Context, r request) (*Lease, error)

	// renew asks the stores once to confirm a lease.
	renew(ctx context.Context, ls *Lease) renewal

	// release releases a lease that is over, or was never started. It returns when the first attempt has returned of every
	// release that the caller has to wait for.
	release(ls *Lease)
}

// request is one acquisition as its caller wants it.
type request struct {
	key        string
	expiry     time.Duration
	waitUntil  time.Time // the end of the wait, which bounds no attempt; zero if there is none
	minHold    time.Duration
	renewal    bool
	closure    bool
	background bool // its release is not waited for
	both       bool // acquire the lock in both stores before fn starts, whatever the mode
}

var errOver = errors.New("the lease was over already; a longer expiry leaves a slow store more time")

// mayShare reports whether r may have a claim that another call of this process has made, see [Lease.handOver]: it wants nothing
// of the stores that the other one did not want.
func (r *request) mayShare() bool { return r.renewal && r.minHold == 0 && !r.both }

// newLease returns a lease for r, with a claim of its own, that has not been started.
func (l *Locker) newLease(ctx context.Context, r request) *Lease {
	return l.leaseOf(ctx, r, Claim{Key: r.key, Token: newToken(), Expiry: r.expiry, Holder: l.holder})
}

// leaseOf returns a lease for r that has not been started.
func (l *Locker) leaseOf(ctx context.Context, r request, c Claim) *Lease {
	ls := &Lease{
		locker:     l,
		base:       ctx,
		claim:      c,
		shares:     r.mayShare(),
		renewal:    r.renewal,
		background: r.background,
		closure:    r.closure,
		minHold:    r.minHold,
		released:   make(chan struct{}),
	}
	ls.primary.lateness = max(r.expiry, leastLateness)
	ls.secondary.lateness = ls.primary.lateness
	ls.parent, _ = LeaseFromContext(ctx)
	return ls
}

// askPrimary requests ls of the primary. It returns an error if the answer ends the acquisition in every mode: the lock is
// held elsewhere, the error is permanent, the caller has gone. Otherwise the primary has granted, or the answer's error says
// why it is unavailable.
func (l *Locker) askPrimary(ctx context.Context, ls *Lease) (answer, error) {
	a := l.lock(ctx, ls, l.primary, time.Time{}, l.primaryLimit(ctx, ls.claim.Expiry))
	if a.err == nil && a.Held && !time.Now().Before(ls.validity(Primary)) {
		a.err = l.primary.wrap(OpLock, ls.claim, Unavailable(errOver))
	}
	switch {
	case ctx.Err() != nil:
		return a, newEndedError(ctx, ls.claim.Key)
	case a.err == nil && !a.Held:
		return a, busyBy(ls.claim.Key, a.Grant)
	case a.err != nil && !IsUnavailable(a.err):
		return a, &notAcquiredError{key: ls.claim.Key, why: "the primary refused with a permanent error", errs: a.err}
	}
	return a, nil
}

// leastLateness is how long a request whose client has given it up is expected to be carried out yet, at least: a server or a
// proxy that hangs for longer has mostly closed the connection by then.
const leastLateness = 30 * time.Second

// leastPatience is how long a primary has to be given before its silence says something about it rather than about the
// caller's deadline or expiry.
const leastPatience = 100 * time.Millisecond

// primaryLimit returns how long the primary may take to answer an acquisition: a third of the expiry, so that what it
// grants is worth having, and half of the caller's time where there is a secondary that needs the other half. Where there is
// none, or hardly any time, the deadline of ctx does not count: a call ends with its ctx anyway, and must be seen to have
// ended for that reason.
func (l *Locker) primaryLimit(ctx context.Context, expiry time.Duration) time.Duration {
	limit := expiry / renewalFraction
	if deadline, ok := ctx.Deadline(); ok && l.secondary != nil && !isHurried(ctx) {
		limit = min(limit, time.Until(deadline)/2)
	}
	return limit
}

// isHurried reports whether ctx leaves too little time for two stores. Then the primary has all of it, and the secondary decides
// only if the primary is known to be down: one that was merely not given the time may have granted the key to another instance,
// of which the secondary has not heard yet.
func isHurried(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < 2*leastPatience
}

// isPatient reports whether a caller gives each store its whole time, so that its failure is everybody's.
func (l *Locker) isPatient(ctx context.Context, expiry time.Duration) bool {
	if l.primaryLimit(ctx, expiry) < l.primary.timeout {
		return false
	}
	if l.secondary == nil {
		return true
	}
	limit := trusted(expiry)
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	return limit >= l.secondary.timeout
}

// bySecondary lets the secondary decide, because the primary is unavailable: why says so. What the primary may have
// recorded is not rolled back while the lease lives: it is the lease's own record, which each renewal tries to renew.
//
// A primary that was given hardly any time is not taken for one that is down.
func (l *Locker) bySecondary(ctx context.Context, ls *Lease, why error) (*Lease, error) {
	if !isCutShort(why) {
		l.suspects.outage(l.longestExpiry())
		l.events.emit(ctx, Event{Kind: KindFellBack, Store: Primary, Op: OpLock, Key: ls.claim.Key, Err: why})
	}
	a := l.lockInTurn(ctx, ls, time.Time{}, trusted(ls.claim.Expiry))
	if a.err == nil && a.Held {
		if ctx.Err() == nil && ls.start(Secondary, a) {
			return ls, nil
		}
		a.err = l.secondary.wrap(OpLock, ls.claim, Unavailable(errOver))
	}
	var err error
	switch {
	case ctx.Err() != nil:
		err = newEndedError(ctx, ls.claim.Key)
	case a.err == nil:
		busy := busyBy(ls.claim.Key, a.Grant)
		busy.poll = true
		err = busy
	case errors.Is(a.err, errContended):
		err = busyBy(ls.claim.Key, Grant{Contended: true})
	case IsUnavailable(a.err):
		err = &notAcquiredError{key: ls.claim.Key, why: noStore, errs: errors.Join(why, a.err), unavailable: true}
	default:
		err = &notAcquiredError{key: ls.claim.Key, why: "the primary is unavailable, and the secondary refused with a permanent error", errs: errors.Join(why, a.err)}
	}
	return nil, l.rollBack(ls, err)
}

// startBy starts a lease that store has granted, if it is not over by now.
func (l *Locker) startBy(ls *Lease, store Store, a answer) (*Lease, error) {
	if ls.start(store, a) {
		return ls, nil
	}
	s := l.store(store)
	return nil, l.rollBack(ls, &notAcquiredError{key: ls.claim.Key, why: "the grant arrived too late", errs: s.wrap(OpLock, ls.claim, Unavailable(errOver)), unavailable: true})
}

// backOff rolls back what the primary has granted while the secondary reports another holder. It waits for that, so that
// the next caller is not busy because of this one, and wakes no waiter: two instances must not chase each other.
func (l *Locker) backOff(ctx context.Context, ls *Lease, to Holder) error {
	conflict := conflictWith(to)
	l.events.emit(ctx, Event{Kind: KindConflict, Store: Secondary, Op: OpLock, Key: ls.claim.Key, Err: conflict})
	ls.backsOff()
	return l.rollBackNow(ctx, ls, &BusyError{Key: ls.claim.Key, Holder: to, poll: true, err: conflict})
}

// rollBack releases, in the background, what a failed acquisition may have recorded. It returns err.
func (l *Locker) rollBack(ls *Lease, err error) error {
	l.discard(ls)
	return err
}

// discard begins the release of a lease that was not started. It reports whether there is anything to release.
func (l *Locker) discard(ls *Lease) bool {
	if !ls.discard() {
		return false
	}
	l.releaseLater(ls)
	return true
}

// releaseLater releases a lease that is over on a goroutine of its own. The reconcilers know it before this returns: a caller that
// tries again at once replaces what was recorded, instead of being busy because of it.
func (l *Locker) releaseLater(ls *Lease) {
	for _, s := range l.stores() {
		if !ls.isSettled(s) {
			s.background.changed(ls)
		}
	}
	go l.release(ls)
}

// rollBackNow is rollBack for a record that stands: the caller waits until its first release has returned, or ctx ends.
func (l *Locker) rollBackNow(ctx context.Context, ls *Lease, err error) error {
	if l.discard(ls) {
		select {
		case <-ls.released:
		case <-ctx.Done():
		}
	}
	return err
}

// release releases a lease, once, after it has ended or instead of starting it.
//
// It is counted in l.background already, by whoever ended or discarded the lease: Close may look in between.
func (l *Locker) release(ls *Lease) {
	defer l.background.add(-1)
	defer close(ls.released)
	ls.awaitRenewal()
	l.mode.release(ls)
	if ls.background {
		l.keys.free(ls, ls.keptUntil())
	}
}

// maxTokens is how many more requests one acquisition makes to replace an earlier record of this process.
const maxTokens = 32

// lock requests ls of a store, until ends or for the whole expiry, and notes the answer.
func (l *Locker) lock(ctx context.Context, ls *Lease, s *store, ends time.Time, limit time.Duration) answer {
	sent := time.Now()
	return l.lockReplacing(ls, s, true, func(n int) (Claim, bool) { return ls.sending(s, true, n) }, func(c Claim) answer {
		a := s.lock(ctx, c, ends, limit-time.Since(sent))
		if a.cutShort {
			a.err = s.wrap(OpLock, ls.claim, &cutShortError{handlersOwn(a.err)})
		}
		return a
	})
}

// lockReplacing requests ls of a store, and notes the answer. Where the store names this process as the holder, or no holder, it may
// be an earlier record of our own whose release is not confirmed: then it is asked again at once, to replace that one. claim
// returns the nth claim, and whether there is another one.
//
// If a later request has no answer, an acquisition stays refused: another process may have this one's name. A mirror write
// (of a lease that has started) is refused only where the store named no holder: our own record ends no job.
func (l *Locker) lockReplacing(ls *Lease, s *store, starts bool, claim func(n int) (Claim, bool), ask func(Claim) answer) answer {
	var refusal *answer
	for n := 0; ; n++ {
		c, more := claim(n)
		s.background.replaces(c)
		a := ask(c)
		ls.answered(s, a)
		switch {
		case a.err == nil && !a.Held && !a.Contended && (a.HeldBy.ID == l.holder || a.HeldBy.ID == "") && more && n < maxTokens:
			if starts || a.HeldBy.ID == "" {
				refusal = &a
			}
			continue
		case a.err != nil && refusal != nil:
			return *refusal
		}
		return a
	}
}

// extend extends ls in a store, and notes the answer. A store that cannot extend records it anew.
func (l *Locker) extend(ctx context.Context, ls *Lease, s *store, limit time.Duration) answer {
	c, _ := ls.sending(s, !s.extends(), 0)
	if !s.extends() {
		s.background.replaces(c)
	}
	a := s.extend(ctx, c, time.Time{}, limit, ls.takeBatched(s))
	ls.answered(s, a)
	return a
}

// lockInTurn is lock for the secondary, see inTurn.
func (l *Locker) lockInTurn(ctx context.Context, ls *Lease, ends time.Time, limit time.Duration) answer {
	return l.inTurn(ctx, ls, limit, func(limit time.Duration) answer { return l.lock(ctx, ls, l.secondary, ends, limit) })
}

// inTurn asks the secondary about ls in the key's turn, so that what this process asks of it about one key arrives in
// order, also across successive leases. A caller that had to wait for its turn shares the refusal that another caller got
// meanwhile, so that a queue of callers does not ask one by one.
func (l *Locker) inTurn(ctx context.Context, ls *Lease, limit time.Duration, ask func(limit time.Duration) answer) answer {
	s, key := l.secondary, ls.claim.Key
	queued := time.Now()
	if !s.background.take(ctx, key, queued.Add(min(limit, s.timeout))) {
		a := answer{sent: time.Now(), expiry: ls.claim.Expiry, calledOff: ctx.Err() != nil}
		a.err = s.wrap(OpLock, ls.claim, Unavailable(fmt.Errorf("not asked in time, an earlier request for the same key has not been answered: %w", context.DeadlineExceeded)))
		if a.calledOff {
			a.err = s.wrap(OpLock, ls.claim, ctx.Err())
		}
		s.background.tidyRefusals(key)
		return a
	}
	defer s.background.done(key)
	if by, ok := s.background.refusedSince(key, queued); ok && !ls.sent(s) {
		return answer{Grant: Grant{HeldBy: by}, sent: time.Now(), expiry: ls.claim.Expiry}
	}
	a := ask(limit - time.Since(queued)) // the store has its timeout from now on
	l.noteHolder(s, key, a)
	if a.err == nil && !a.Held && a.couldRecord {
		s.background.refused(key, a)
	}
	return a
}

// noteHolder notes who holds a key, if the secondary has answered a request to record it, whatever the request was for: a
// start, a renewal, a mirror write, a minimum hold.
func (l *Locker) noteHolder(s *store, key string, a answer) {
	switch {
	case s.name != Secondary || !a.couldRecord || a.err != nil:
	case a.Held:
		l.suspects.granted(key, a)
	default:
		l.suspects.refused(key, a)
	}
}

// heardLate takes an answer that came when its caller had gone.
func (l *Locker) heardLate(ls *Lease, s *store, a answer) {
	if !a.couldRecord || ls.heardSince(s, a.sent) {
		return
	}
	if !a.Held && ls.ended() && s.background.hasOther(ls) { // that may be the one which the store has named
		return
	}
	l.noteHolder(s, ls.claim.Key, a)
	if m, ok := l.mode.(async); ok && s.name == Secondary && ls.isMirrored() {
		m.mirrored(ls, a)
	}
}

// renewal is what a round of renewal came to.
type renewal struct {
	by   Store // the store that confirmed the lease, authoritative from now on; empty if none did
	lost error // why the lock is lost; nil if it is not
	err  error // what a store reported; tried again unless lost is set
}

func renewedBy(s Store) renewal        { return renewal{by: s} }
func notRenewed(err error) renewal     { return renewal{err: err} }
func lostBy(reason, err error) renewal { return renewal{lost: reason, err: err} }

// renewInPrimary extends the record in the primary, or records it there again if the secondary is authoritative: with the
// same token, and within the validity, so that the lock is still ours. With leaveHalf, half of what is left of that is for the
// secondary.
func (l *Locker) renewInPrimary(ctx context.Context, ls *Lease, leaveHalf bool) answer {
	s, limit := l.primary, primaryRenewalLimit(time.Until(ls.validNow()), ls.claim.Expiry, leaveHalf)
	op := OpLock
	var a answer
	if ls.stands(s) {
		op = OpExtend
		a = l.extend(ctx, ls, s, limit)
	} else {
		a = l.lock(ctx, ls, s, time.Time{}, limit)
	}
	l.reportRenewed(ls, s, op, a)
	return a
}

// primaryRenewalLimit returns how long a renewal in the primary may take when that much is left of the validity.
func primaryRenewalLimit(left, expiry time.Duration, leaveHalf bool) time.Duration {
	if leaveHalf {
		left /= 2
	}
	return min(left, expiry/renewalFraction)
}

// renewInSecondary extends the record in the secondary, which stands there. It is not recorded anew: if it is gone, another
// instance may have held the lock meanwhile.
func (l *Locker) renewInSecondary(ctx context.Context, ls *Lease) answer {
	a := l.inTurn(ctx, ls, time.Until(ls.validNow()), func(limit time.Duration) answer { return l.extend(ctx, ls, l.secondary, limit) })
	if a.err == nil && a.Held {
		ls.agreedAgain()
	}
	l.reportRenewed(ls, l.secondary, OpExtend, a)
	return a
}

func (l *Locker) reportRenewed(ls *Lease, s *store, op Op, a answer) {
	if a.err == nil && a.Held {
		l.events.emit(ls.base, Event{Kind: KindRenewed, Store: s.name, Op: op, Key: ls.claim.Key, Took: time.Since(a.sent)})
	}
}

// reportForgotten reports that the primary no longer holds a lease that goes on by the secondary: it restarted empty, or
// someone removed the key. Usually it has forgotten every key, and one report is enough.
func (l *Locker) reportForgotten(ls *Lease) {
	if !time.Now().Before(ls.validity(Primary)) { // it could not be renewed there, and has expired
		return
	}
	e := Event{Kind: KindForgotten, Level: levelDebug, Store: Primary, Op: OpExtend, Key: ls.claim.Key, Err: ErrNotHeld}
	if l.primary.health.news(string(e.Kind), "", "") {
		e.Level = levelWarn
	}
	l.events.emit(ls.base, e)
}

// store returns the store of a name.
func (l *Locker) store(name Store) *store {
	if name == Primary {
		return l.primary
	}
	return l.secondary
}

// longestExpiry returns the longest expiry that a call of this Locker has asked for.
func (l *Locker) longestExpiry() time.Duration { return time.Duration(l.longest.Load()) }

func (l *Locker) noteExpiry(expiry time.Duration) {
	for longest := l.longest.Load(); int64(expiry) > longest; longest = l.longest.Load() {
		if l.longest.CompareAndSwap(longest, int64(expiry)) {
			return
		}
	}
}

// lostInSecondary is the renewal of a lease that the secondary, on which it relied, does not hold any more. A handler that
// cannot extend was asked to record it, and has named another holder.
func lostInSecondary(b answer) renewal {
	if b.couldRecord {
		return lostBy(ErrNotHeld, conflictWith(b.HeldBy))
	}
	return lostBy(ErrNotHeld, lostRecord(Secondary))
}

// lostRecord says what ErrNotHeld alone does not: which store it was, and what may have happened there.
func lostRecord(s Store) error {
	return fmt.Errorf("the %s has lost the record: it was restarted without its data, failed over, evicted or deleted the key, or its clock stepped", s)
}

func conflictWith(h Holder) error {
	if h.ID == "" {
		return errors.New("the secondary reports another holder, which the primary does not know")
	}
	return fmt.Errorf("the secondary reports holder %s, which the primary does not know", quoted(h.ID))
}

// processName is what people see as the holder.
var processName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s (pid %d)", host, os.Getpid())
})

// newToken returns 128 random bits.
func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the process rather than return too little
	return hex.EncodeToString(b[:])
}
