package redlockhandler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
	"github.com/lokilock/loki/internal/retry"
)

const (
	// maxRounds is how often a claim is put to the vote while the votes are split, if ctx sets no limit before that.
	maxRounds = 24

	// A pause between two rounds is random, up to a bound that begins with the first of these, or with the time that the
	// round took if that was longer, and is doubled up to the second. Rivals who paused for the same time would split the
	// votes forever.
	firstSplitPause = 4 * time.Millisecond
	maxSplitPause   = 200 * time.Millisecond
)

// Lock implements [loki.LockHandler]. It is [Handler.Grant] without the details.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	grant, err := h.Grant(ctx, c)
	return grant.Held, err
}

// untilDeadline returns a context that ends at ctx's deadline. A call of the Locker may go on for a while after that, so that a
// connection stays usable; here that is worth nothing, and votes that are counted, or rolled back, after the Locker has gone on
// would be those of a lease that has been renewed, or given up, meanwhile.
func untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline)
	}
	return context.WithCancel(ctx)
}

// Grant implements [loki.Granter], without fencing tokens: [loki.Grant.Fence] is zero.
//
// The claim holds with a majority of the servers, and is refused if a majority holds for one and the same other token. If a
// majority answered and no claim has a majority, the votes are split: the claim's own are rolled back and, after a random
// pause that grows, it is put to the vote again, for as long as ctx has time. Votes that stay split are contention, and no
// outage: the claim is refused, without a holder, and [loki.Grant.Contended] says so.
//
// Everything else is an error, mostly an [*Error].
//
// A claim that is refused is rolled back on every server that may have recorded it: before the return or, where a server
// does not answer, after it. After an error that is the caller's task, as [loki.LockHandler] has it.
//
// Each server that is silent is asked again within the call, over a new connection. So a call for a claim that another call
// is putting to the vote waits for that one: two at once would roll back each other's votes.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.check(ctx, redisstore.CheckLasting(c)); err != nil {
		return loki.Grant{}, err
	}
	ctx, cancel := untilDeadline(ctx)
	defer cancel()
	for {
		v, other := h.voting(idOf(c))
		if other == nil {
			defer h.voted(idOf(c), v)
			v.grant, v.err = h.elect(ctx, c)
			return v.grant, v.err
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return loki.Grant{}, ctx.Err()
		}
		switch {
		case !c.Repeated:
		case other.err == nil && other.grant.Held:
			// A grant counts from the moment of its call: this one has come later than the votes.
			return loki.Grant{}, errRepeated
		default:
			return other.grant, other.err
		}
	}
}

var (
	errNoVote   = errors.New("redlockhandler: the vote that this call waited for ended in a panic")
	errRepeated = loki.NotSent(errors.New("redlockhandler: not asked: the call that this one repeats has acquired the lock"))
)

// election is a claim that is being put to the vote.
type election struct {
	done  chan struct{} // closed when the rest may be read
	grant loki.Grant
	err   error
}

// voting begins an election for a claim, unless there is one: then it returns that.
func (h *Handler) voting(id claimID) (begun, other *election) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.elections[id]; other != nil {
		return nil, other
	}
	begun = &election{done: make(chan struct{}), err: errNoVote}
	if h.elections == nil {
		h.elections = make(map[claimID]*election)
	}
	h.elections[id] = begun
	return begun, nil
}

// voted ends an election.
func (h *Handler) voted(id claimID, e *election) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.elections, id)
	close(e.done)
}

// sent returns the claim as it is sent to one server. Whether the call is a repeated one makes no difference: within the first
// call each server that was silent has been asked again over a new connection.
func sent(c loki.Claim, repeated bool) loki.Claim {
	c.Repeated = repeated
	return c
}

// elect puts a claim to the vote, until there is a decision.
func (h *Handler) elect(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	bound := firstSplitPause
	slowest := time.Duration(0) // round
	contended := false
	for n := 1; ; n++ {
		asked := time.Now()
		r := h.newRound(h.patience(c.Expiry))
		r.voting = true
		r.ask(ctx, idOf(c), func(ctx context.Context, s *server, repeated bool) Vote {
			return s.vote(ctx, sent(c, repeated))
		}, nil)
		b, d, err := r.count(ctx, (*ballot).ofLock)
		took := time.Since(asked)
		late := d == won && tooLate(c.Expiry, took)
		contended = contended || d == split
		switch {
		case err != nil && !contended:
			return loki.Grant{}, err
		case d == won && !late:
			return loki.Grant{Held: true, Released: b.released()}, nil
		case d == unknown || d == mistaken:
			return loki.Grant{}, b.failure("lock", c.Key, d)
		}
		h.rollBack(ctx, c, r, b)
		if d == lost {
			return loki.Grant{HeldBy: b.holder()}, nil
		}
		slowest = max(slowest, took)
		bound = min(max(bound, took), maxSplitPause)
		pause := rand.N(bound)
		bound *= 2
		if err == nil && n < maxRounds && hasTime(ctx, pause+2*slowest) && retry.Sleep(ctx, pause) {
			continue
		}
		if !contended {
			return loki.Grant{}, loki.Unavailable(fmt.Errorf("redlockhandler: the votes for %q took %v to come, which leaves too little of its expiry of %v; they were rolled back",
				c.Key, took.Round(time.Millisecond), c.Expiry))
		}
		return loki.Grant{Contended: true}, nil
	}
}

// hasTime reports whether ctx goes on for longer than d. Another round, or its rollback, that it would end halves what is known
// now: the error would be that of ctx alone.
func hasTime(ctx context.Context, d time.Duration) bool {
	deadline, ends := ctx.Deadline()
	return !ends || time.Until(deadline) > d
}

// rollBack releases what a round may have recorded, whatever has become of ctx, and waits for the servers that have
// granted it, for as long as the round waited for them: rivals who ask again must not find votes of a claim that has
// given up.
//
// It wakes no waiter. The key is not free because of it, and waiters who woke each other with every vote that they could
// not use would never rest. Nor is the token remembered: no other store knows it, and the one before it may be needed.
//
// A release may reach its server twice, or late, and a vote that is cast again has the same token. So it is for the one
// vote that it rolls back, by its fence, and that server gets no vote before the release was answered, see [leftover].
func (h *Handler) rollBack(ctx context.Context, c loki.Claim, r *round, b *ballot) {
	c.Quiet, c.Mirrored = true, false
	back := make(chan struct{}, len(h.servers))
	missing := 0
	for i, s := range h.servers {
		v, req := b.votes[i], r.requests[i]
		if v.Verdict == VerdictHeld || v.Err == errNotAsked { //nolint:errorlint // identity: whether it is in the lane
			continue
		}
		granted := v.Verdict == VerdictGranted
		step := func(l *lane) {
			if req.sent && req.vote.Verdict != VerdictHeld { // it may have refused since
				fence := req.vote.fence
				if req.vote.late || fence == 0 { // which of the two is recorded in the end is not known yet
					fence = unknownFence
				}
				s.rollBack(context.WithoutCancel(ctx), l, c, fence)
			}
			if granted {
				back <- struct{}{}
			}
		}
		if s.submit(idOf(c), maxLateReleases, step) && granted {
			missing++
		}
	}
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	for ; missing > 0; missing-- {
		select {
		case <-back:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
