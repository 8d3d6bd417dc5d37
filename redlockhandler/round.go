package redlockhandler

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	errNotAsked = errors.New("not asked: earlier calls have not returned")
	errSilent   = errors.New("not asked: it does not answer the call before this one")
	errNoTurn   = errors.New("not asked in time: an earlier request for the claim has not returned")

	errNotAwaited = errors.New("not waited for: without its vote there was no majority any more")
)

// vaguePatience is how long servers are waited for that could tell until when a key is held.
const vaguePatience = 50 * time.Millisecond

// round is one question to every server.
type round struct {
	handler  *Handler
	patience time.Duration
	voting   bool // the question is for a vote, of which a server that does not answer gets few
	requests []*request
	votes    chan numbered // room for all: no step waits for a reader

	// settled is closed when the round has been decided, or given up, and then says how. What makes a round whose
	// steps wait for it closes it, with settle.
	settled chan struct{}
	outcome decision
}

// numbered is a vote and whose.
type numbered struct {
	Vote
	index int
}

// request is the question to one server. Its fields are for the steps of the claim's lane there, which come one after
// the other.
type request struct {
	index int
	sent  bool // the server may have got it
	vote  Vote // what came of it
}

func (h *Handler) newRound(patience time.Duration) *round {
	r := &round{handler: h, patience: patience, votes: make(chan numbered, len(h.servers)), settled: make(chan struct{})}
	for i := range h.servers {
		r.requests = append(r.requests, &request{index: i})
	}
	return r
}

// vote casts a vote. Nothing may be cast twice.
func (r *round) vote(i int, v Vote) {
	v.Server = r.handler.servers[i].name
	r.votes <- numbered{v, i}
}

// ask puts the question to every server, each with the same deadline. What ctx carries is passed on and its end is not: a
// command that was sent has been sent, and go-redis would drop the connection with it. then, if not nil, follows the
// vote in the claim's lane.
func (r *round) ask(ctx context.Context, id claimID, do func(ctx context.Context, s *server, repeated bool) Vote, then func(context.Context, *lane, *request)) {
	ctx = context.WithoutCancel(ctx)
	deadline := time.Now().Add(r.patience)
	for i, s := range r.handler.servers {
		req := r.requests[i]
		step := func(l *lane) {
			timed, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			req.vote = r.put(timed, l, id, req, do)
			r.vote(i, req.vote)
			if then != nil {
				then(ctx, l, req)
			}
		}
		if !s.submit(id, maxLateCalls, step) {
			r.vote(i, Vote{Verdict: VerdictUnreachable, Err: errNotAsked})
		}
	}
}

// put puts the question to one server, in a step of the claim's lane.
func (r *round) put(ctx context.Context, l *lane, id claimID, req *request, do func(context.Context, *server, bool) Vote) Vote {
	s := r.handler.servers[req.index]
	if ctx.Err() != nil || !s.mayVote(l, id) {
		return Vote{Verdict: VerdictUnreachable, Err: errNoTurn}
	}
	repeats := s.repeats
	if r.voting {
		leave, ok := s.voting.enter(ctx, s)
		if !ok {
			return Vote{Verdict: VerdictUnreachable, Err: errSilent}
		}
		defer leave()
		repeats = s.mayRepeat()
	}
	req.sent = true
	v := s.call(ctx, repeats, func(ctx context.Context, repeated bool) Vote { return do(ctx, s, repeated) })
	l.noteOf(v)
	return v
}

// count reads votes until they decide, by the rule, or all are there, or time is up: the servers', which makes those
// that are missing unreachable, or ctx's, which is an error.
func (r *round) count(ctx context.Context, rule func(*ballot) decision) (*ballot, decision, error) {
	b := &ballot{votes: make([]Vote, len(r.requests))}
	for i, s := range r.handler.servers {
		b.votes[i].Server = s.name
	}
	begun := time.Now()
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	wasVague := false
	for {
		d := rule(b)
		switch {
		case d == vague && !wasVague:
			wasVague = true
			timer.Reset(min(vaguePatience, r.patience-time.Since(begun)))
		case d != undecided && d != vague:
			return b, d, nil
		case r.onlySilentMissing(b):
			timer.Reset(0)
		}
		select {
		case v := <-r.votes:
			b.votes[v.index] = v.Vote
		case <-ctx.Done():
			return b, undecided, ctx.Err()
		case <-timer.C:
			waited := time.Since(begun).Round(time.Millisecond)
			for i := range b.votes {
				v := &b.votes[i]
				switch {
				case v.Verdict != "":
					continue
				case r.handler.servers[i].silent.Load():
					v.Err = fmt.Errorf("no answer within %v, nor when it was asked before: %w", waited, context.DeadlineExceeded)
				default:
					v.Err = fmt.Errorf("no answer within %v: %w", waited, context.DeadlineExceeded)
				}
				v.Verdict = VerdictUnreachable
			}
		}
	}
}

// onlySilentMissing reports whether a majority has answered, and every server that answered the last time. There is no time
// for the others then: with one server of three down any two rivals split the votes, and would do so for the whole time of
// the third, again and again. A server that is back is heard with the next round. Without a majority the others are waited
// for: after an outage all of them have been silent, and a round that gave them less time than the others would go on asking
// servers that are well.
func (r *round) onlySilentMissing(b *ballot) bool {
	for i, v := range b.votes {
		if v.Verdict == "" && !r.handler.servers[i].silent.Load() {
			return false
		}
	}
	return b.count(VerdictGranted)+b.count(VerdictHeld)+b.count(VerdictNotHeld) >= b.majority()
}

// settle tells the steps that wait for it what became of the round.
func (r *round) settle(d decision) {
	r.outcome = d
	close(r.settled)
}
