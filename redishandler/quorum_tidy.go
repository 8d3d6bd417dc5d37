package redishandler

// This file is the release of a claim on one server of a quorum, until the server has let it go.

import (
	"context"
	"time"

	"github.com/lokilock/loki"
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
func (m *member) letGo(ctx context.Context, l *lane, c loki.Claim, fence string, tell func(Vote)) {
	forgets := time.Now().Add(min(padded(c.Expiry), maxTidyTime))
	waiting, undone := false, false
	defer func() {
		if waiting {
			m.tidying.Add(-1)
		}
	}()
	for pause := firstTidyPause; ; pause = min(2*pause, maxTidyPause) {
		v := m.releaseOnce(ctx, c, fence)
		// Once it was answered, a later grant has another fence, but for LokiNet's keys, which have none.
		undone = fence != whicheverGrant && (v.Verdict == VerdictUnreachable || undone && m.handler.naming.lokiNet)
		v.held = v.held || l.doubt // else it may have found the work of an earlier request done
		tell(v)
		tell = func(Vote) {}
		l.noteOf(v)
		if v.Verdict == VerdictMistake || !l.doubt || time.Now().Add(pause).After(forgets) {
			return
		}
		if !waiting {
			waiting = true
			if m.tidying.Add(1) > maxTidying {
				return
			}
		}
		if undone {
			time.Sleep(pause)
		} else if !m.rest(l, pause) {
			return
		}
	}
}

// whicheverGrant stands for the fence where whatever a server has of the claim is to go.
const whicheverGrant = "whichever"

// releaseOnce is one attempt. A fence that is not known is asked for first: a command that is carried out late, or twice,
// must not undo a later vote.
func (m *member) releaseOnce(ctx context.Context, c loki.Claim, fence string) Vote {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return m.call(ctx, func(ctx context.Context, repeated bool) Vote {
		c := again(c, repeated)
		grant := fence
		switch fence {
		case whicheverGrant:
			grant = ""
		case "":
			found, err := m.handler.fenceOf(ctx, c)
			switch {
			case err != nil:
				return failure(err)
			case found == "":
				return Vote{Verdict: VerdictNotHeld}
			}
			grant = found
		}
		held, err := m.handler.release(ctx, c, grant, true)
		if err != nil {
			return failure(err)
		}
		return Vote{Verdict: VerdictNotHeld, held: held}
	})
}

// fenceOf is the fence with which the server has the claim, empty if it does not.
func (h *Handler) fenceOf(ctx context.Context, c loki.Claim) (string, error) {
	fence, err := h.run(ctx, how{op: releasing, repeated: c.Repeated}, fenceScript, c.Key, c.Token).Text()
	if err != nil {
		return "", h.classify(ctx, c.Key, err)
	}
	return fence, nil
}
