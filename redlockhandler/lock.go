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
	// maxRounds is how often a claim is put to the vote while the votes are split.
	maxRounds = 12

	// A pause between two rounds is random, up to a bound that begins with the first of these, or with the time that the
	// round took if that was longer, and is doubled up to the second. Rivals who paused for the same time would split the
	// votes for ever.
	firstSplitPause = 4 * time.Millisecond
	maxSplitPause   = 100 * time.Millisecond
)

// Lock implements [loki.LockHandler]. It is [Handler.Grant] without the details.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	grant, err := h.Grant(ctx, c)
	return grant.Held, err
}

// untilDeadline returns a context that ends at ctx's deadline. A call of the Locker may go on for a while after that, so that a
// connection stays usable; here that is worth nothing, and votes that are counted, or given back, after the Locker has gone on
// would be those of a lease that has been renewed, or given up, meanwhile.
func untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline)
	}
	return context.WithCancel(ctx)
}

// Grant implements [loki.Granter], without fences: [loki.Grant.Fence] is zero.
//
// The claim holds with a majority of the servers. It is refused if a majority holds for one and the same other token.
// When the votes are split, so that no claim has a majority, they are cast again after a random pause, as long as ctx has
// time for it and a dozen times at most; meanwhile all but the claim with the most votes give theirs back.
//
// Everything else is an error, mostly a [*Error]: also votes that are split to the end, because to be told "busy"
// would have all of the rivals skip what none of them does.
//
// With any answer but a grant, what the claim has got, or had before, is released on every server: before the return or,
// where a server does not answer, after it.
//
// Each server that is silent is asked again within the call, over a new connection. So a repeated call waits for the one
// that it repeats: two at once would take each other's votes back.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.check(ctx, redisstore.CheckLasting(c)); err != nil {
		return loki.Grant{}, err
	}
	ctx, cancel := untilDeadline(ctx)
	defer cancel()
	h.mu.Lock()
	g := h.granting[idOf(c)]
	if g == nil {
		g = &granting{done: make(chan struct{}), err: errNoVote}
		if h.granting == nil {
			h.granting = make(map[claimID]*granting)
		}
		h.granting[idOf(c)] = g
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.granting, idOf(c))
			close(g.done)
		}()
		g.grant, g.err = h.elect(ctx, c)
		return g.grant, g.err
	}
	h.mu.Unlock()
	select {
	case <-g.done:
		return g.grant, g.err
	case <-ctx.Done():
		return loki.Grant{}, ctx.Err()
	}
}

var errNoVote = errors.New("redlockhandler: the vote that this call waited for ended in a panic")

// granting is a claim that is being put to the vote.
type granting struct {
	done  chan struct{} // closed when the others may be read
	grant loki.Grant
	err   error
}

// again returns the claim of a request that may be a repeated one.
func again(c loki.Claim, repeated bool) loki.Claim {
	c.Repeated = c.Repeated || repeated
	return c
}

// elect puts a claim to the vote, until there is a decision.
func (h *Handler) elect(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	bound := firstSplitPause
	kept := false // votes of the round before
	for n := 1; ; n++ {
		asked := time.Now()
		r := h.newRound(h.patience(c.Expiry))
		r.ask(ctx, idOf(c), func(ctx context.Context, s *server, repeated bool) Vote {
			return s.vote(ctx, again(c, repeated))
		}, nil)
		b, d, err := r.count(ctx, (*ballot).ofLock)
		took := time.Since(asked)
		late := d == won && tooLate(c.Expiry, took)
		if d == won && !late {
			return loki.Grant{Held: true, Released: b.released()}, nil
		}
		bound = min(max(bound, took), maxSplitPause)
		leads := d == split && b.leads(c.Token)
		pause := splitPause(bound, leads)
		again := (d == split || late) && n < maxRounds && hasTime(ctx, pause+took)
		if !again || !leads {
			h.takeBack(ctx, c, r, b, kept)
		}
		kept = leads
		switch {
		case again && retry.Sleep(ctx, pause):
			bound *= 2
		case again:
			h.takeBack(ctx, c, r, b, true)
			return loki.Grant{}, ctx.Err()
		case err != nil:
			return loki.Grant{}, err
		case d == lost:
			return loki.Grant{HeldBy: b.holder()}, nil
		case late:
			return loki.Grant{}, loki.Unavailable(fmt.Errorf("redlockhandler: the votes for %q took %v to come, which leaves too little of its expiry of %v; it was taken back",
				c.Key, took.Round(time.Millisecond), c.Expiry))
		default:
			return loki.Grant{}, b.failure("lock", c.Key, d)
		}
	}
}

// splitPause is the pause before the next round, up to bound. Who leads keeps his votes and is to be first, when the
// others have given theirs back.
func splitPause(bound time.Duration, leads bool) time.Duration {
	if leads {
		return rand.N(bound / 4)
	}
	return bound/4 + rand.N(bound*3/4)
}

// hasTime reports whether ctx goes on for longer than d. Another round that it would end halves what is known now: the
// error would be that of ctx alone.
func hasTime(ctx context.Context, d time.Duration) bool {
	deadline, ends := ctx.Deadline()
	return !ends || time.Until(deadline) > d
}

// takeBack releases what a round may have recorded, whatever has become of ctx, and waits for the servers that have
// granted it, for as long as the round waited for them: rivals who ask again must not find votes of a claim that has
// given up.
//
// It wakes nobody. The key is not free because of it, and waiters who woke each other with every vote that they could
// not use would never rest. Nor is the token remembered: no other store knows it, and the one before it may be needed.
//
// A release may reach its server twice, or late, and a vote that is cast again has the same token. So it is for the one
// vote that it takes back, by its fence, and that server is not asked again before the release was answered, see letGo.
//
// kept says that there are votes of the round before, too, on whichever server.
func (h *Handler) takeBack(ctx context.Context, c loki.Claim, r *round, b *ballot, kept bool) {
	c.Quiet, c.Mirrored = true, false
	back := make(chan struct{}, len(h.servers))
	missing := 0
	for i, s := range h.servers {
		v, req := b.votes[i], r.requests[i]
		if !kept && (v.Verdict == VerdictHeld || v.Err == errNotAsked) { //nolint:errorlint // identity: whether it is in the lane
			continue
		}
		granted := v.Verdict == VerdictGranted
		step := func(l *lane) {
			if kept || req.sent && req.vote.Verdict != VerdictHeld { // it may have refused since
				fence := req.vote.fence
				if req.vote.late || fence == 0 { // which of the two is recorded in the end nobody knows yet
					fence = unknownFence
				}
				s.letGo(context.WithoutCancel(ctx), l, c, fence, func(Vote) {
					if granted {
						back <- struct{}{}
					}
				})
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
