package redlockhandler

import (
	"context"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

const (
	// releaseTimeout bounds one attempt at a release. It is longer than a request that somebody waits for gets: a
	// release does its work also when nobody does.
	releaseTimeout = time.Second

	// maxTidyTime is for how long a release is tried again at most. The claim's expiry ends it before.
	maxTidyTime = 30 * time.Second

	// maxTidying is how many releases of one server may wait for another try at once. What comes on top is left to
	// expire.
	maxTidying = 1024

	firstTidyPause = 50 * time.Millisecond // before the second try; each further one is twice as long
	maxTidyPause   = 500 * time.Millisecond
)

// letGo releases the claim on the server, and tells what came of the first try.
//
// It tries again where that is not the end of it, until the server would have forgotten by itself: after a failure, and
// when an earlier request was not answered. There a success proves nothing, because that request may reach the server
// after the release did: go-redis sends a command again on its own, and one can land after its connection is gone. A new
// request for the same claim ends this; who makes it wants what it asks for. But it waits while the release of one grant
// has had no answer: the server may have that grant still, would count it as the new vote, and the release could land later.
func (s *server) letGo(ctx context.Context, l *lane, c loki.Claim, fence int64, tell func(Vote)) {
	forgets := time.Now().Add(min(padded(c.Expiry), maxTidyTime))
	waiting, undone := false, false
	defer func() {
		if waiting {
			s.tidying.Add(-1)
		}
	}()
	for pause := firstTidyPause; ; pause = min(2*pause, maxTidyPause) {
		v := s.releaseOnce(ctx, c, fence)
		// Once it was answered, a later grant has another fence, but for LokiNet's keys, which have none.
		undone = fence != redisstore.AnyFence && (v.Verdict == VerdictUnreachable || undone && s.lokiNet)
		v.held = v.held || l.doubt // else it may have found the work of an earlier request done
		tell(v)
		tell = func(Vote) {}
		l.noteOf(v)
		if v.Verdict == VerdictPermanentError || !l.doubt || time.Now().Add(pause).After(forgets) {
			return
		}
		if !waiting {
			waiting = true
			if s.tidying.Add(1) > maxTidying {
				return
			}
		}
		if undone {
			time.Sleep(pause)
		} else if !s.rest(l, pause) {
			return
		}
	}
}

// unknownFence stands for a fence that the server has to be asked for.
const unknownFence = -1

// releaseOnce is one attempt. A fence that is not known is asked for first: a command that is carried out late, or twice,
// must not undo a later vote.
func (s *server) releaseOnce(ctx context.Context, c loki.Claim, fence int64) Vote {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return s.call(ctx, func(ctx context.Context, repeated bool) Vote {
		c, fence := again(c, repeated), fence
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
