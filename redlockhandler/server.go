package redlockhandler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

const (
	// maxLateCalls is how many calls of one server may be late: past their deadline, and not yet returned. When there
	// are so many the server is asked nothing until some have returned, and counts as unreachable at once. A go-redis
	// client heeds a deadline in the middle of a command only with ContextTimeoutEnabled; by default a call of a server that
	// hangs takes some five seconds.
	maxLateCalls = 64

	// maxLateReleases is the same for a release. It is higher, for what locks have left behind.
	maxLateReleases = 4 * maxLateCalls

	// maxQueued is how many requests of one claim may stand behind one that has not returned.
	maxQueued = 32
)

// server is one of a Handler's servers. It is safe for concurrent use.
type server struct {
	name    string
	store   *redisstore.Store
	repeats bool // a request that is not answered can be repeated over a new connection
	lokiNet bool // grants have no fences

	late   atomic.Int64 // see maxLateCalls
	silent atomic.Bool  // the last that is known of the server is that it did not answer, or not in time

	voting, releasing place

	mu        sync.Mutex // guards what follows; nothing is called with it held
	lanes     map[claimID]*lane
	leftovers map[claimID]*leftover
	tidying   bool      // a goroutine repeats the releases of leftovers
	repeated  time.Time // see repeatPause
}

func newServer(name string, client Client, settings redisstore.Settings) *server {
	store := redisstore.New(client, settings)
	return &server{
		name: name, store: store, repeats: store.Repeats(), lokiNet: settings.LokiNetKeys,
		lanes: make(map[claimID]*lane), leftovers: make(map[claimID]*leftover),
		voting: make(place, 1), releasing: make(place, 1),
	}
}

// place is for the one request of a kind that a server gets at a time while it does not answer. It finds out when the server
// does; the others wait. More of them would only be more to roll back, over more new connections: after an outage of a second,
// with forty callers, servers had so many connections and releases to serve that the votes between them came too late, and
// left releases behind in their turn.
type place chan struct{}

// enter waits for the place if the server does not answer. It reports false if ctx ended first; then nothing may be sent. leave
// is called when the request has been answered; the end of ctx does so, too.
func (p place) enter(ctx context.Context, s *server) (leave func(), ok bool) {
	if !s.silent.Load() {
		return func() {}, true
	}
	select {
	case p <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	if ctx.Err() != nil { // both may have been ready
		<-p
		return nil, false
	}
	free := sync.OnceFunc(func() { <-p })
	stop := context.AfterFunc(ctx, free)
	return func() {
		stop()
		free()
	}, true
}

// claimID names an acquisition.
type claimID struct{ key, token string }

func idOf(c loki.Claim) claimID { return claimID{c.Key, c.Token} }

// lane is the requests of one claim to one server, one after the other: a release that overtook a lock that is still on
// its way would find nothing, and the lock would stay behind until it expires. A lane is there while it has requests,
// and is one goroutine.
type lane struct {
	queue []func(*lane)

	// doubt says that a request was sent and not answered. It may reach the server still, and later than what was
	// sent after it. It is for the lane's own goroutine.
	doubt bool
}

// noteOf notes whether a request may still be on its way that matters: not a late renewal or release, which find nothing.
func (l *lane) noteOf(v Vote) {
	records := v.Verdict == VerdictHeld || v.Verdict == VerdictGranted && v.votes
	l.doubt = l.doubt || v.Verdict == VerdictUnreachable || v.late && records
}

// submit has step called when all that was submitted for the claim before it has returned. False means that it will not
// be called: there are too many already.
//
// What is for no claim in particular does not wait.
func (s *server) submit(id claimID, limit int, step func(*lane)) bool {
	if id == (claimID{}) {
		if s.late.Load() >= int64(limit) {
			return false
		}
		go step(&lane{})
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, busy := s.lanes[id]
	switch {
	case busy && len(l.queue) >= maxQueued, !busy && (s.late.Load() >= int64(limit) || s.silent.Load() && len(s.lanes) >= limit):
		return false
	case !busy:
		l = &lane{}
		s.lanes[id] = l
		go s.serve(id, l)
	}
	l.queue = append(l.queue, step)
	return true
}

// serve takes one step after the other until there is none.
func (s *server) serve(id claimID, l *lane) {
	for {
		s.mu.Lock()
		if len(l.queue) == 0 {
			delete(s.lanes, id)
			s.mu.Unlock()
			return
		}
		step := l.queue[0]
		l.queue = l.queue[1:]
		s.mu.Unlock()
		step(l)
	}
}

const (
	// repeatShare is the part of the time of a request after which it is repeated, see [loki.Claim.Repeated].
	repeatShare = 3

	// repeatPause is how long votes and releases are not repeated again while the server does not answer. Each costs a new
	// connection, or several, and one that is answered shows that the server is there.
	repeatPause = 500 * time.Millisecond
)

// mayRepeat reports whether a vote or a release may be repeated.
func (s *server) mayRepeat() bool {
	if !s.repeats || !s.silent.Load() {
		return s.repeats
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.repeated) < repeatPause {
		return false
	}
	s.repeated = time.Now()
	return true
}

// call does one request to the server, and with repeats does it again if there is no answer. ctx has a deadline and ends by
// nothing else; a call that outlives it is counted.
func (s *server) call(ctx context.Context, repeats bool, do func(ctx context.Context, repeated bool) Vote) Vote {
	inTime := context.AfterFunc(ctx, func() {
		s.late.Add(1)
		s.silent.Store(true)
	})
	v := s.attempt(ctx, repeats, do)
	if !inTime() {
		s.late.Add(-1)
	}
	s.silent.Store(v.Verdict == VerdictUnreachable)
	return v
}

// attempt returns the first answer. A vote that came while another request was on its way is marked: that one may be
// carried out yet.
func (s *server) attempt(ctx context.Context, repeats bool, do func(ctx context.Context, repeated bool) Vote) Vote {
	if !repeats {
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

// vote asks the server to record a claim, for longer than its expiry, so that it holds for as long by our clock.
func (s *server) vote(ctx context.Context, c loki.Claim) Vote {
	c.Expiry, c.Fence = padded(c.Expiry), 0
	grant, owner, err := s.store.Grant(ctx, c)
	switch {
	case err != nil:
		return failure(err)
	case grant.Held:
		return Vote{Verdict: VerdictGranted, released: grant.Released, fence: grant.Fence, votes: true}
	}
	return heldVote(grant.HeldBy, owner)
}

// renew asks the server to renew a claim.
func (s *server) renew(ctx context.Context, c loki.Claim) Vote {
	c.Expiry = padded(c.Expiry)
	held, err := s.store.Extend(ctx, c)
	switch {
	case err != nil:
		return failure(err)
	case held:
		return Vote{Verdict: VerdictGranted}
	}
	return Vote{Verdict: VerdictNotHeld}
}

// inspect asks the server who holds.
func (s *server) inspect(ctx context.Context, key string, repeated bool) Vote {
	holder, owner, held, err := s.store.Inspect(ctx, key, repeated)
	switch {
	case err != nil:
		return failure(err)
	case !held:
		return Vote{Verdict: VerdictNotHeld}
	}
	return heldVote(holder, owner)
}

// heldVote is the vote for another claim, by its owner token. What is left of it is what its holder was promised.
func heldVote(holder loki.Holder, owner string) Vote {
	if holder.Left > 0 {
		left := promised(holder.Left)
		holder.Left, holder.Until = left, holder.Until.Add(left-holder.Left)
	}
	return Vote{Verdict: VerdictHeld, HeldBy: holder, token: owner}
}
