package redlockhandler

import (
	"context"
	"slices"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

const (
	// leastReleaseTimeout bounds one attempt at a release, unless [WithServerTimeout] gives more. It is longer than a request that a
	// caller waits for gets: a release does its work also when no caller waits for it.
	leastReleaseTimeout = time.Second

	// maxLeftoverTime is for how long a release is repeated at most. The claim's expiry ends it before.
	maxLeftoverTime = 30 * time.Second

	// maxLeftovers is how many claims a server may have to be released once more. More of them are left to expire.
	maxLeftovers = 1024

	firstLeftoverPause = 50 * time.Millisecond // before the first repetition; each further one is twice as long
	maxSilencePause    = 500 * time.Millisecond
)

// unknownFence stands for a fence that the server has to be asked for.
const unknownFence = -1

// leftover is a claim that has been released on a server and may be recorded there nevertheless, or again: the server did not
// answer, or an earlier request of the claim is still on its way. There a success proves nothing, because that request may
// reach the server after the release did: go-redis sends a command again on its own, and one can land after its connection
// is gone.
type leftover struct {
	claim loki.Claim
	fence int64

	// unanswered says that a release of one grant has had no answer, and may undo a later vote if it lands after that: the
	// server may have that grant still, and would count it as the new vote.
	unanswered bool

	pause         time.Duration // before the repetition after the next
	next, forgets time.Time
}

// release releases the claim on the server, whichever grant of it there is.
func (s *server) release(ctx context.Context, l *lane, c loki.Claim) Vote {
	return s.releaseOrLeave(ctx, l, &leftover{claim: c, fence: redisstore.AnyFence}, s.repeats)
}

// rollBack releases one grant of the claim, by its fence: a command that is carried out late, or twice, must not undo a later
// vote. Nobody waits for long, and there may be many of them while servers are slow, so it is not sent over a second
// connection as well.
func (s *server) rollBack(ctx context.Context, l *lane, c loki.Claim, fence int64) {
	s.releaseOrLeave(ctx, l, &leftover{claim: c, fence: fence}, false)
}

func (s *server) releaseOrLeave(ctx context.Context, l *lane, o *leftover, repeats bool) Vote {
	v := Vote{Verdict: VerdictUnreachable, Err: errSilent}
	timed, cancel := context.WithTimeout(ctx, s.releaseTimeout)
	defer cancel()
	if leave, ok := s.releasing.enter(timed, s); ok {
		v = s.attemptRelease(timed, o, repeats)
		leave()
	}
	v.held = v.held || l.doubt // else it may have found the work of an earlier request done
	l.noteOf(v)
	if l.doubt && v.Verdict != VerdictPermanentError {
		o.pause = firstLeftoverPause
		o.forgets = time.Now().Add(min(padded(o.claim.Expiry), maxLeftoverTime))
		s.leave(ctx, o)
	}
	return v
}

// attemptRelease is one attempt.
func (s *server) attemptRelease(ctx context.Context, o *leftover, repeats bool) Vote {
	ctx, cancel := context.WithTimeout(ctx, s.releaseTimeout)
	defer cancel()
	v := s.call(ctx, repeats, func(ctx context.Context, repeated bool) Vote {
		c, fence := again(o.claim, repeated), o.fence
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
	// Once it was answered, a later grant has another fence, but for LokiNet's keys, which have none.
	o.unanswered = o.fence != redisstore.AnyFence && (v.Verdict == VerdictUnreachable || o.unanswered && s.lokiNet)
	return v
}

// leave has the claim released again later, unless it is put to the vote before.
func (s *server) leave(ctx context.Context, o *leftover) {
	o.next = time.Now().Add(o.pause)
	o.pause *= 2
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
	silence := firstLeftoverPause
	for {
		due, wait, ok := s.due()
		if !ok {
			return
		}
		for _, o := range due {
			done := make(chan Vote, 1)
			if !s.submit(idOf(o.claim), maxLateReleases, func(l *lane) { done <- s.repeatRelease(ctx, o) }) {
				continue
			}
			if v := <-done; v.Verdict == VerdictUnreachable {
				wait, silence = silence, min(2*silence, maxSilencePause)
				break
			}
			silence = firstLeftoverPause
		}
		time.Sleep(wait)
	}
}

// due returns the leftovers that are to be released again, in the order of their times, and how long to wait after that. It
// returns false, and tidying has ended, if there are none at all.
func (s *server) due() (due []*leftover, wait time.Duration, ok bool) {
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
	return due, firstLeftoverPause, s.tidying
}

// repeatRelease is a step of the claim's lane.
func (s *server) repeatRelease(ctx context.Context, o *leftover) Vote {
	if s.takeLeftover(idOf(o.claim), o) == nil { // the claim was put to the vote, or released, since
		return Vote{Verdict: VerdictNotHeld}
	}
	v := s.attemptRelease(ctx, o, s.repeats)
	switch v.Verdict {
	case VerdictPermanentError:
	case VerdictUnreachable:
		o.pause = firstLeftoverPause
		s.leave(ctx, o)
	default:
		s.leave(ctx, o)
	}
	return v
}

// takeLeftover takes the claim's leftover, or only that one if it is not nil. It returns nil if there is none.
func (s *server) takeLeftover(id claimID, only *leftover) *leftover {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.leftovers[id]
	if o == nil || only != nil && o != only {
		return nil
	}
	delete(s.leftovers, id)
	return o
}

// settled reports whether the claim may be put to the vote on the server: whoever does so wants no release of it any more,
// but one that has had no answer must get one first.
func (s *server) settled(ctx context.Context, id claimID) bool {
	o := s.takeLeftover(id, nil)
	if o == nil || !o.unanswered {
		return true
	}
	s.attemptRelease(ctx, o, s.repeats)
	if o.unanswered {
		o.pause = firstLeftoverPause
		s.leave(ctx, o)
	}
	return !o.unanswered
}
