package redlockhandler

import (
	"context"
	"slices"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

const (
	// releaseTimeout bounds one attempt at a release. It is longer than a request that a caller waits for gets: a
	// release does its work also when no caller does.
	releaseTimeout = time.Second

	// maxLeftoverTime is for how long a release is repeated at most. The claim's expiry ends it before.
	maxLeftoverTime = 30 * time.Second

	// maxLeftovers is how many claims a server may have to be released once more. More of them are left to expire.
	maxLeftovers = 1024

	firstLeftoverPause = 50 * time.Millisecond // before the first repetition; each further one is twice as long
	maxLeftoverPause   = 500 * time.Millisecond
)

// leftover is a claim that has been released, as its caller knows, and that one server may have nevertheless, or may get
// again: it did not answer, or an earlier request of the claim is still on its way. There a success proves nothing, because
// that request may reach the server after the release did: go-redis sends a command again on its own, and one can land after
// its connection is gone. So the release is repeated until the server would have forgotten the claim by itself. A new
// request for the same claim ends this: its caller wants what it asks for.
type leftover struct {
	claim loki.Claim
	fence int64

	// unanswered says that a release of one grant has had no answer. The server may have that grant still, would count it as
	// a new vote, and the release could land later. Until it has been answered the claim gets no vote there.
	unanswered bool

	pause         time.Duration // before the repetition after the next
	next, forgets time.Time
}

// release is a step of the claim's lane: one attempt, whose outcome is a vote of the round. Only if the round is won the
// caller believes that the claim is over, and does not repeat the release itself.
func (s *server) release(ctx context.Context, l *lane, c loki.Claim, r *round, index int) {
	select {
	case <-r.settled:
		if r.outcome != won { // the caller repeats it: many of them would wait for a server that does not answer
			return
		}
	default:
	}
	o := &leftover{claim: c, fence: redisstore.AnyFence}
	v := s.attemptRelease(ctx, l, o)
	v.held = v.held || l.doubt // else it may have found the work of an earlier request done
	r.vote(index, v)
	<-r.settled
	if r.outcome == won {
		s.leave(ctx, l, o, v)
	}
}

// rollBack is a step of the claim's lane: it releases one grant.
func (s *server) rollBack(ctx context.Context, l *lane, c loki.Claim, fence int64) {
	o := &leftover{claim: c, fence: fence}
	s.leave(ctx, l, o, s.attemptRelease(ctx, l, o))
}

// unknownFence stands for a fence that the server has to be asked for.
const unknownFence = -1

// attemptRelease is one attempt. A fence that is not known is asked for first: a command that is carried out late, or twice,
// must not undo a later vote.
func (s *server) attemptRelease(ctx context.Context, l *lane, o *leftover) Vote {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	v := Vote{Verdict: VerdictUnreachable, Err: errSilent}
	if leave, ok := s.releasing.enter(ctx, s); ok {
		defer leave()
		v = s.sendRelease(ctx, o)
	}
	l.noteOf(v)
	// Once it was answered, a later grant has another fence, but for LokiNet's keys, which have none.
	o.unanswered = o.fence != redisstore.AnyFence && (v.Verdict == VerdictUnreachable || o.unanswered && s.lokiNet)
	return v
}

func (s *server) sendRelease(ctx context.Context, o *leftover) Vote {
	return s.call(ctx, s.mayRepeat(), func(ctx context.Context, repeated bool) Vote {
		c, fence := sent(o.claim, repeated), o.fence
		if fence == unknownFence {
			found, held, err := s.store.Fence(ctx, c)
			switch {
			case err != nil:
				return failure(err)
			case !held:
				return Vote{Verdict: VerdictNotHeld}
			}
			fence = found
		}
		held, err := s.store.Release(ctx, c, fence, true)
		if err != nil {
			return failure(err)
		}
		return Vote{Verdict: VerdictNotHeld, held: held}
	})
}

// leave has the release repeated later, if v was not the end of it.
func (s *server) leave(ctx context.Context, l *lane, o *leftover, v Vote) {
	if !l.doubt || v.Verdict == VerdictPermanentError {
		return
	}
	now := time.Now()
	if o.forgets.IsZero() {
		o.forgets = now.Add(min(padded(o.claim.Expiry), maxLeftoverTime))
	}
	o.pause = min(max(2*o.pause, firstLeftoverPause), maxLeftoverPause)
	o.next = now.Add(o.pause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.next.After(o.forgets) || len(s.leftovers) >= maxLeftovers {
		return
	}
	s.leftovers[idOf(o.claim)] = o
	if !s.tidying {
		s.tidying = true
		go s.tidy(context.WithoutCancel(ctx))
	}
}

// tidy repeats the releases of leftovers, one after the other, until there are none. However many claims an outage has left
// behind, their releases must not keep the server from answering votes; and a server that does not answer one is not asked
// for the next before a pause.
func (s *server) tidy(ctx context.Context) {
	for {
		due, ok := s.due()
		if !ok {
			return
		}
		pause := firstLeftoverPause
		for _, o := range due {
			answered := make(chan bool, 1)
			if !s.submit(idOf(o.claim), maxLateReleases, func(l *lane) { answered <- s.repeatRelease(ctx, l, o) }) || !<-answered {
				pause = maxLeftoverPause
				break
			}
		}
		time.Sleep(pause)
	}
}

// due returns the leftovers whose release is to be repeated now, in the order of their times. It returns false, and tidying
// has ended, if there are none at all.
func (s *server) due() (due []*leftover, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for id, o := range s.leftovers {
		switch {
		case o.forgets.Before(now):
			delete(s.leftovers, id)
		case !o.next.After(now):
			due = append(due, o)
		}
	}
	slices.SortFunc(due, func(a, b *leftover) int { return a.next.Compare(b.next) })
	s.tidying = len(s.leftovers) > 0
	return due, s.tidying
}

// repeatRelease is a step of the claim's lane. It reports whether the server answers.
func (s *server) repeatRelease(ctx context.Context, l *lane, o *leftover) bool {
	if !s.takeLeftover(o) { // the claim was put to the vote, or released, since
		return true
	}
	l.doubt = true
	v := s.attemptRelease(ctx, l, o)
	s.leave(ctx, l, o, v)
	return v.Verdict != VerdictUnreachable
}

func (s *server) takeLeftover(o *leftover) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leftovers[idOf(o.claim)] != o {
		return false
	}
	delete(s.leftovers, idOf(o.claim))
	return true
}

// mayVote is asked in a step of the claim's lane: it reports whether the server may get a vote for the claim, and ends what
// there is of a leftover if so.
func (s *server) mayVote(l *lane, id claimID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.leftovers[id]
	if o == nil {
		return true
	}
	l.doubt = true
	if o.unanswered {
		return false
	}
	delete(s.leftovers, id)
	return true
}
