package redishandler

// This file is one server of a quorum: the order in which requests of one claim reach it, and how many of them may be
// left behind.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
)

const (
	// maxLateCalls is how many calls of one server may be late: past their deadline, and not yet returned. When there
	// are so many the server is asked nothing until some have returned, and counts as unreachable at once. A go-redis
	// client heeds a deadline in the middle of a command only with ContextTimeoutEnabled; as it comes, a call of a server
	// that hangs takes some sixteen seconds.
	maxLateCalls = 64

	// maxLateReleases is the same for a release. It is higher, for what locks have left behind.
	maxLateReleases = 4 * maxLateCalls

	// maxQueued is how many requests of one claim may stand behind one that has not returned.
	maxQueued = 32
)

// member is one server. It is safe for concurrent use.
type member struct {
	name    string
	handler *Handler
	repeats bool // a request that is not answered can be repeated over a new connection

	late    atomic.Int64 // see maxLateCalls
	silent  atomic.Bool  // the last that is known of the server is that it did not answer, or not in time
	tidying atomic.Int64 // see maxTidying

	mu    sync.Mutex // guards the lanes; nothing is called with it held
	lanes map[claimID]*lane
}

// claimID names an acquisition.
type claimID struct{ key, token string }

func idOf(c loki.Claim) claimID { return claimID{c.Key, c.Token} }

// lane is the requests of one claim to one server, one after the other: a release that overtook a lock that is still on
// its way would find nothing, and the lock would stay behind until it expires. A lane is there while it has requests,
// and is one goroutine.
type lane struct {
	queue []func(*lane)
	more  chan struct{} // has a value when something was queued

	// doubt says that a request was sent and not answered. It may reach the server still, and later than what was
	// sent after it. It is for the lane's own goroutine.
	doubt bool
}

// noteOf notes whether a request may still be on its way that matters: not a late renewal or release, which find nothing.
func (l *lane) noteOf(v Vote) {
	records := v.Verdict == VerdictHeld || v.fence != ""
	l.doubt = l.doubt || v.Verdict == VerdictUnreachable || v.late && records
}

// submit has step called when all that was submitted for the claim before it has returned. False means that it will not
// be called: there are too many already.
//
// What is for no claim in particular waits for nobody.
func (m *member) submit(id claimID, limit int, step func(*lane)) bool {
	if id == (claimID{}) {
		if m.late.Load() >= int64(limit) {
			return false
		}
		go step(&lane{})
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, busy := m.lanes[id]
	switch {
	case busy && len(l.queue) >= maxQueued, !busy && (m.late.Load() >= int64(limit) || m.silent.Load() && len(m.lanes) >= limit):
		return false
	case !busy:
		l = &lane{more: make(chan struct{}, 1)}
		m.lanes[id] = l
		go m.serve(id, l)
	}
	l.queue = append(l.queue, step)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return true
}

// serve takes one step after the other until there is none.
func (m *member) serve(id claimID, l *lane) {
	for {
		m.mu.Lock()
		if len(l.queue) == 0 {
			delete(m.lanes, id)
			m.mu.Unlock()
			return
		}
		step := l.queue[0]
		l.queue = l.queue[1:]
		m.mu.Unlock()
		step(l)
	}
}

// rest waits for d, or until something else is to be done in the lane; false means the latter.
func (m *member) rest(l *lane, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		m.mu.Lock()
		waited := len(l.queue) > 0
		m.mu.Unlock()
		if waited {
			return false
		}
		select {
		case <-l.more: // perhaps of a step that has been taken since
		case <-timer.C:
			return true
		}
	}
}

// repeatShare is the part of the time of a request after which it is repeated, see [loki.Claim.Repeated].
const repeatShare = 3

// call does one request to the server, and repeats it if there is no answer. ctx has a deadline and ends by nothing else; a
// call that outlives it is counted.
func (m *member) call(ctx context.Context, do func(ctx context.Context, repeated bool) Vote) Vote {
	inTime := context.AfterFunc(ctx, func() {
		m.late.Add(1)
		m.silent.Store(true)
	})
	v := m.attempt(ctx, do)
	if !inTime() {
		m.late.Add(-1)
	}
	m.silent.Store(v.Verdict == VerdictUnreachable)
	return v
}

// attempt returns the first answer. A vote that came while another request was on its way is marked: that one may be
// carried out yet.
func (m *member) attempt(ctx context.Context, do func(ctx context.Context, repeated bool) Vote) Vote {
	if !m.repeats {
		return do(ctx, false)
	}
	votes := make(chan Vote, 2)
	send := func(repeated bool) { votes <- do(ctx, repeated) }
	deadline, _ := ctx.Deadline()
	silence := time.NewTimer(time.Until(deadline) / repeatShare)
	defer silence.Stop()
	go send(false)
	for missing := 1; ; {
		select {
		case v := <-votes:
			if missing--; missing == 0 || v.Verdict != VerdictUnreachable {
				v.late = missing > 0
				return v
			}
		case <-silence.C:
			missing++
			go send(true)
		case <-ctx.Done():
			return failure(loki.Unavailable(ctx.Err()))
		}
	}
}
