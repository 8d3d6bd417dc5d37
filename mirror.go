package loki

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/retry"
)

const (
	// MirrorGrace is how long a refused mirror write is tried again before it is a conflict: a release that is still
	// on its way looks like one for a moment. A row that expires within twice this time is waited for, since it may be
	// a dead process's that outlives its key by the way of its last mirror write. It is part of the bound on the overlap
	// of two closures under [MirrorAsync].
	MirrorGrace = 250 * time.Millisecond

	// MaxMirrorBacklog is how many mirror writes of one Locker may wait for their turn. What comes on top is
	// dropped: an event reports it, and the write stays due and is tried again after a pause.
	MaxMirrorBacklog = 4096

	// MirrorConcurrency is how many mirror writes of one Locker are under way at once.
	MirrorConcurrency = 16

	// refusedPause lies between two tries of a refused mirror write, failedPause is the first one after a failure.
	refusedPause = 25 * time.Millisecond
	failedPause  = 100 * time.Millisecond
)

var errMirrorDropped = errors.New("too many mirror writes are waiting for the secondary")

// askSecondary runs a request to the secondary in its turn and waits for the answer, as long as ctx and limit allow. If
// ends is not zero the claim is asked for until then, however long its turn is in coming: answer.expiry says for how long.
func (l *Locker) askSecondary(ctx context.Context, c Claim, ends time.Time, limit time.Duration) answer {
	return l.inTurn(ctx, c, ends, limit, false)
}

// askForNew is askSecondary for a claim that the secondary has not been asked to grant: the refusal of another request will do.
func (l *Locker) askForNew(ctx context.Context, c Claim, limit time.Duration) answer {
	return l.inTurn(ctx, c, time.Time{}, limit, true)
}

func (l *Locker) inTurn(ctx context.Context, c Claim, ends time.Time, limit time.Duration, isNew bool) answer {
	queued := time.Now()
	deadline := queued.Add(min(limit, l.secondary.timeout))
	answers := make(chan answer, 1)
	job := &mirrorJob{queued: queued, run: func() {
		a := l.secondary.lockUntil(ctx, c, ends, time.Until(deadline))
		answers <- a
		if a.err == nil && !a.Held {
			l.mirror.share(c.Key, a)
		}
	}}
	if isNew {
		job.refused = func(by Holder) { answers <- answer{Grant: Grant{HeldBy: by}, sent: time.Now(), expiry: c.Expiry} }
	}
	l.mirror.enqueue(c.Key, job, true)
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
	case <-timer.C:
	}
	if !l.mirror.drop(c.Key, job) {
		return <-answers // it has begun, and keeps its own deadline
	}
	a := answer{sent: time.Now(), expiry: c.Expiry}
	a.err = l.secondary.wrap(opLock, c, Unavailable(fmt.Errorf("not asked in time, an earlier request for the same key has not been answered: %w", context.DeadlineExceeded)))
	if ctx.Err() != nil {
		a.err = l.secondary.wrap(opLock, c, ctx.Err())
	}
	return a
}

// patience is how long a row that refuses is put up with from its first refusal on.
func patience(refusal answer) time.Duration {
	if left := refusal.HeldBy.Left + expirySlack; left > MirrorGrace && left <= 2*MirrorGrace {
		return left
	}
	return MirrorGrace
}

// mirrorState is where a lease is with its row. It is guarded by the lease's mutex.
type mirrorState struct {
	job     *mirrorJob  // queued and perhaps begun
	timer   *time.Timer // of the next try
	refused time.Time   // since when the secondary has been refusing, zero if it is not
	by      Holder      // for whom
	bears   time.Duration
	failed  bool // the latest write failed
	pause   time.Duration
}

// stop is called with the lease's mutex held.
func (s *mirrorState) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// turn is how long a mirror write or a release may keep its key's lane from the next request. A secondary that hangs
// must not hold up, for longer than this, the write that would find out about another holder.
func turn(expiry time.Duration) time.Duration { return expiry / RenewalFraction }

// mirrorWrite puts a write of the lease's row into its place. One that is waiting already will do: it writes what is
// known when it begins.
func (l *Locker) mirrorWrite(ls *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.ended || ls.mirroring.job != nil {
		return
	}
	job := &mirrorJob{background: true}
	job.run = func() { l.writeRow(ls) }
	ls.mirroring.job = l.mirror.enqueue(ls.claim.Key, job, false)
	if ls.mirroring.job == nil {
		l.mirrorDropped(ls)
		l.mirrorAgain(ls, failedPause)
	}
}

// mirrorDropped reports, once for a time of overload, that a mirror write has to wait because the queue is full.
func (l *Locker) mirrorDropped(ls *Lease) {
	e := Event{Kind: KindMirrorDropped, Level: levelDebug, Handler: secondaryName, Op: opLock, Key: ls.claim.Key, Err: errMirrorDropped}
	if l.secondary.health.news(string(e.Kind), "", "") {
		e.Level = levelWarn
	}
	l.events.emit(ls.ctx, e)
}

// mirrorAgain is called with ls.mu held.
func (l *Locker) mirrorAgain(ls *Lease, pause time.Duration) {
	pause += retry.UpTo(pause / 4)
	if ls.mirroring.timer == nil {
		ls.mirroring.timer = time.AfterFunc(pause, func() { l.mirrorWrite(ls) })
		return
	}
	ls.mirroring.timer.Reset(pause)
}

// writeRow is one mirror write: an ordinary Lock of the lease's claim for what is left of it, so that the row does not
// outlive the key.
func (l *Locker) writeRow(ls *Lease) {
	ls.mu.Lock()
	c := ls.claim
	c.Supersedes = ls.supersedes
	ends := ls.confirmed.Add(c.Expiry)
	left := time.Until(ends)
	if ls.ended || left <= 0 || ls.lives == secondaryName { // where its renewals write the row
		ls.mirroring.job = nil
		ls.mu.Unlock()
		return
	}
	ls.secondary.may = true // before it is sent: a release that comes now has to follow it
	ls.mu.Unlock()

	a := l.secondary.lockUntil(context.WithoutCancel(ls.ctx), c, ends, min(left, turn(c.Expiry)))

	ls.mu.Lock()
	ls.mirroring.job = nil
	ls.secondary.note(a)
	event := Event{Handler: secondaryName, Op: opLock, Key: c.Key, Took: time.Since(a.sent), Err: a.err}
	var conflict bool
	st := &ls.mirroring
	switch {
	case a.err != nil:
		if !st.failed {
			st.failed, st.pause = true, failedPause
			if IsUnavailable(a.err) { // else its health has reported it
				event.Kind = KindMirrorFailed
			}
		} else {
			st.pause = min(2*st.pause, max(failedPause, ls.claim.Expiry/RenewalFraction))
		}
		if !ls.ended {
			l.mirrorAgain(ls, st.pause)
		}
	case a.Held:
		event.Kind, st.failed, st.refused = KindMirrored, false, time.Time{}
	default:
		if st.refused.IsZero() {
			st.refused, st.by, st.bears = time.Now(), a.HeldBy, patience(a)
			event.Kind, event.Err = KindConflict, conflictWith(a.HeldBy)
		}
		st.failed = false
		conflict = time.Since(st.refused) >= st.bears
		if !conflict && !ls.ended {
			l.mirrorAgain(ls, refusedPause)
		}
	}
	ls.mu.Unlock()
	if event.Kind == KindMirrored {
		l.doubts.settle(c.Key)
	}
	if event.Kind != "" {
		l.events.emit(ls.ctx, event)
	}
	if conflict {
		l.doubts.raise(c.Key)
		ls.lose(ErrConflict, conflictWith(a.HeldBy))
	}
}

// mirrorRelease lets the lease's row go, in its turn. It returns nil if there can be none, else a channel that gets what
// the first attempt came to. A closure that ends before its mirror write has begun needs neither.
func (l *Locker) mirrorRelease(ls *Lease, keep time.Time, waited bool) <-chan released {
	ls.mu.Lock()
	job := ls.mirroring.job
	ls.mu.Unlock()
	if job != nil {
		l.mirror.drop(ls.claim.Key, job)
	}
	ls.mu.Lock()
	may := ls.secondary.may
	ls.mu.Unlock()
	if !may {
		return nil
	}
	done := make(chan released, 1)
	l.background.add(1)
	l.mirror.enqueue(ls.claim.Key, &mirrorJob{background: !waited, run: func() {
		defer l.background.add(-1)
		ls.mu.Lock()
		p := l.newRelease(ls, l.secondary, ls.secondary, keep)
		ls.mu.Unlock()
		p.limit = turn(ls.claim.Expiry)
		done <- p.attempt()
	}}, true)
	return done
}
