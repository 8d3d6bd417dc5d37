package redlockhandler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
	"github.com/lokilock/loki/internal/retry"
)

const (
	// maxRounds is how often a claim is put to the vote while the votes are split and it leads.
	maxRounds = 12

	// maxRetreats is how often a claim that does not lead gives its votes back and asks again.
	maxRetreats = 2

	// The pause before the next round lasts half as long as the round did, but at least the first of these, which is doubled
	// with each round, and at most the second: about the time in which the rivals' rollbacks arrive.
	firstSplitPause = 2 * time.Millisecond
	maxSplitPause   = 100 * time.Millisecond
)

// Lock tries once to record the claim on a majority of the servers, and returns false if another claim has a majority, or
// if the votes are split between claims that contend. It is [Handler.Grant] without the details.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	grant, err := h.Grant(ctx, c)
	return grant.Held, err
}

// Grant is [Handler.Lock] with who holds the key, if a majority says so, and the token of the mirrored claim that was last
// released. There are no fencing tokens: [loki.Grant.Fence] is zero.
//
// The claim holds with a majority of the servers, and is refused if a majority holds for one and the same other token.
// Otherwise the votes are split. Then the claim with the most votes, or of several the one with the smallest token, keeps its
// votes and asks again, a dozen times at most and as long as ctx has time for it. All others give theirs back, and ask again
// twice at most, more slowly. If the votes are split still, the claim is refused without a known holder: this is contention,
// not an outage.
//
// If too many servers did not answer, the error is an [*Error] that is [loki.Unavailable].
//
// With any answer but a grant, what the claim has got, or had before, is rolled back on every server: before the return or,
// where a server does not answer, after it.
//
// Each server that is silent is asked again within the call, over a new connection. So a repeated call waits for the one
// that it repeats.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.check(ctx, redisstore.CheckLasting(c)); err != nil {
		return loki.Grant{}, err
	}
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
//
// Rivals who see the same votes agree about who leads, and whoever gives its votes back has seen a rival that ranks above it.
// So one of them goes on, whatever the others see. Random pauses alone, with every rival keeping its votes or all giving them
// back, split the votes of twenty instances that are 80 ms away for as long as they try.
//
// The rival may have given up already: the votes of a claim that a majority refused can come late, and are rolled back only
// then. So a claim that does not lead asks again, when the leader has had time to win.
func (h *Handler) elect(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	kept := false // votes of an earlier round
	retreats := 0
	for n := 1; ; n++ {
		asked := time.Now()
		r := h.newRound(h.patience(c.Expiry))
		r.voting = true
		r.ask(ctx, idOf(c), func(ctx context.Context, s *server, repeated bool) Vote {
			return s.vote(ctx, again(c, repeated))
		}, nil)
		b, d, err := r.count(ctx, (*ballot).ofLock)
		took := time.Since(asked)
		late := d == won && tooLate(c.Expiry, took) // the next round restarts what is left of the expiry
		if d == won && !late {
			return loki.Grant{Held: true, Released: b.released()}, nil
		}
		pause := splitPause(n, took)
		leads := late || d == split && b.leads(c.Token)
		if leads && n < maxRounds && hasTime(ctx, pause+took) && retry.Sleep(ctx, pause) {
			kept = true
			continue
		}
		h.rollBack(ctx, c, r, b, kept)
		kept = false
		pause += took // by then the leader has had another round
		if d == split && !leads && retreats < maxRetreats && hasTime(ctx, pause+took) && retry.Sleep(ctx, pause) {
			retreats++
			continue
		}
		switch {
		case err != nil:
			return loki.Grant{}, err
		case d == lost:
			return loki.Grant{HeldBy: b.holder()}, nil
		case d == split:
			return loki.Grant{}, nil
		case late:
			return loki.Grant{}, loki.Unavailable(fmt.Errorf("redlockhandler: the votes for %q took %v to come, which leaves too little of its expiry of %v; they were rolled back",
				c.Key, took.Round(time.Millisecond), c.Expiry))
		}
		err = b.failure(loki.OpLock, c.Key, d)
		if n == 1 && r.notSent() {
			err = loki.NotSent(err)
		}
		return loki.Grant{}, err
	}
}

// splitPause is the pause after round n, which took that long.
func splitPause(n int, took time.Duration) time.Duration {
	return min(max(firstSplitPause<<min(n-1, 10), took/2), maxSplitPause)
}

// hasTime reports whether ctx goes on for longer than d. Another round that it would end halves what is known now: the
// error would be that of ctx alone.
func hasTime(ctx context.Context, d time.Duration) bool {
	deadline, ends := ctx.Deadline()
	return !ends || time.Until(deadline) > d
}

// rollBack releases what a claim may have got, whatever has become of ctx, and waits for the servers that have granted it,
// for as long as the round waited for them: whoever asks next must not find votes of a claim that has given up.
//
// It wakes nobody. The key is not free because of it, and waiters who woke each other with every vote that they could
// not use would never rest. Nor is the token remembered: no other store knows it, and the one before it may be needed.
//
// A release may reach its server twice, or late, and the same claim may be put to the vote again, as a mirror write is. So it
// is for the one vote that it rolls back, by its fence, see [server.rollBack].
//
// kept says that there are votes of earlier rounds, too, on whichever server.
func (h *Handler) rollBack(ctx context.Context, c loki.Claim, r *round, b *ballot, kept bool) {
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
			if kept || req.state.Load() == sent && req.vote.Verdict != VerdictHeld { // it may have refused since
				fence := req.vote.fence
				if req.vote.late || fence == 0 { // which of two is recorded in the end nobody knows yet
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
