package redlockhandler

import (
	"context"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

// Extend implements [loki.Extender]. The claim holds if a majority of the servers held and renewed it; with fewer left it
// is over, whatever the others hold, and is not acquired anew. What a minority still holds then is for Release.
//
// When a majority renewed it, servers that do not hold it get it again, for the same token, if no other token holds there:
// one that restarted empty, or was down when the lock was taken. Otherwise a claim would live as long as its last server
// and not as long as its majority. That does not count for this answer, and is done after it.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	ctx, cancel := untilDeadline(ctx)
	defer cancel()
	if err := h.check(ctx, redisstore.CheckLasting(c)); err != nil {
		return false, err
	}
	for n := 1; ; n++ {
		asked := time.Now()
		b, d, err := h.renew(ctx, c)
		switch {
		case err != nil:
			return false, err
		case d == lost:
			return false, nil
		case d != won:
			return false, b.failure("extend", c.Key, d)
		case time.Since(asked) < c.Expiry || c.Expiry < loki.MinExpiry:
			return true, nil
		case n == maxLateRenewals: // the first vote may have been over when the last one came
			return false, b.failure("extend", c.Key, unknown)
		}
	}
}

// maxLateRenewals is how often a claim is renewed while the votes take longer than its expiry to come.
const maxLateRenewals = 3

// renew is one round.
func (h *Handler) renew(ctx context.Context, c loki.Claim) (b *ballot, d decision, err error) {
	asked := time.Now()
	r := h.newRound(h.patience(c.Expiry))
	defer func() { r.settle(d) }()
	r.ask(ctx, idOf(c), func(ctx context.Context, s *server, repeated bool) Vote {
		return s.renew(ctx, sent(c, repeated))
	}, h.healing(r, c, asked))
	return r.count(ctx, (*ballot).ofExtend)
}

// healing records the claim again on a server that did not hold it, once the round is decided.
//
// It stays in the same turn of the claim's lane: a release that comes meanwhile goes behind it, and no server gets a
// claim that has been released. Nor does one that is over: the majority has just been counted, and after the expiry from
// before that nothing is sent. A command that is sent and lands later than that is one server's vote at most, since the
// servers of the majority were not asked, and a vote of a claim whose holder knows that it is over: it can make others
// cast theirs again, and ends with its expiry.
func (h *Handler) healing(r *round, c loki.Claim, asked time.Time) func(context.Context, *lane, *request) {
	c.Supersedes = "" // what holds there holds
	return func(ctx context.Context, l *lane, req *request) {
		if req.vote.Verdict != VerdictNotHeld {
			return
		}
		<-r.settled
		if r.outcome != won || time.Since(asked) > c.Expiry {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, r.patience)
		defer cancel()
		s := h.servers[req.index]
		l.noteOf(s.call(ctx, s.repeats, func(ctx context.Context, repeated bool) Vote { return s.vote(ctx, sent(c, repeated)) }))
	}
}
