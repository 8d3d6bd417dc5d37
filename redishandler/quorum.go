package redishandler

// This file is the quorum: one lock on several servers that know nothing of each other.

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki"
)

// Quorum is a [loki.LockHandler] that keeps each claim on several independent servers and has it hold where a majority
// says so: the algorithm that the Redis documentation calls Redlock. A lock survives the loss of any minority of the
// servers, one of three, two of five, three of seven, without any replication between them. It is safe for concurrent
// use.
//
// It asks all servers at once, each for at most [DefaultServerTimeout] and a tenth of the expiry, and answers when a
// majority has decided, whatever the others do. What it could not decide is a [*QuorumError], which tells what each server
// said. Keys and values are those of [Handler], on every server, so that a person reads one format.
//
// # What it promises
//
// At most one holder at a time, as long as these hold:
//
// Clocks run at nearly the same rate. Each server counts the expiry by its own clock, and is asked for a hundredth and 2 ms
// more, for those that run fast. Redis counts by the clock of the machine, so one that is set forward by more than that
// forgets too early; clocks are to be slewed and not stepped.
//
// A server does not forget what it has promised. One that crashes and comes back empty, or without its last second of
// writes, votes a second time: the holder has servers 1 and 2 of three, 2 restarts, and a rival gets 2 and 3. Either each
// server writes what it promises before it answers (appendonly yes and appendfsync always), or one that has crashed is
// kept down for longer than the longest expiry in use, by when all that it promised is over. Nothing here can see to that.
// A server that is back is given the claims of those who still hold a majority, with the next renewal.
//
// The holder heeds the end of its lease. No lock service can stop a holder that was paused, or whose write was long on
// its way, from writing after its lock has gone to another. Martin Kleppmann's critique of Redlock is that only a fence
// that the guarded store compares stops it, and that this algorithm has none to give, besides leaning on clocks as above.
// Both is so. If work that overlaps costs more than work done twice, guard it where it takes effect, or use a store that
// issues fences.
//
// It offers no fences because it could not keep their order. Each server numbers its own claims; the largest number of one
// majority can be lower than that of the majority before, since the two may have only one server in common, and it may
// not be the one that had counted further. To agree on a number takes a consensus between the servers, which they do not
// have.
//
// # Settings
//
// Servers are to be as independent of each other as can be had: machines, power, networks. Replicas of a server are no
// servers of a quorum, and a quorum of masters with a failover of their own is as weak as that. Give each client its own
// server, and ContextTimeoutEnabled, so that calls which a server does not answer are not left behind until the client's
// own timeouts end them; those are bounded in number either way.
//
// See https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ for the algorithm, and
// https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html for the critique.
type Quorum struct {
	members []*member
	timeout time.Duration // zero: the default
	mistake error         // of NewQuorum's caller; every method returns it

	mu       sync.Mutex // guards granting
	granting map[claimID]*granting
}

// The scripts of a server's vote: an operation's, and what it tells besides. See lua/vote.lua.
var (
	//go:embed lua/vote.lua
	voteLua string
	//go:embed lua/look.lua
	lookLua string
	//go:embed lua/fence.lua
	fenceLua string

	voteScript = newScript(inFunction("grant", grantLua) + voteLua)
	lookScript = newScript(inFunction("inspect", inspectLua) + lookLua)

	fenceScript = newScript(fenceLua)
)

// inFunction makes a script a function of the one that follows it.
func inFunction(name, lua string) string {
	return "local function " + name + "()\n" + strings.TrimSpace(lua) + "\nend\n"
}

// NewQuorum returns a Quorum of the clients' servers: an odd number, three at least. The clients stay the caller's, as in
// [New]. They may be of any type that New takes, one server each.
//
// The options are those of New except [WithFenceTTL] and [WithReplicaAck], and [WithServerTimeout] besides. All instances
// that share a lock have to use the same servers.
//
// Too few clients, an even number of them, a nil one, two for one server or a wrong option show in [Quorum.Validate], which
// loki's Build calls, and in every other method.
func NewQuorum[C Client](clients []C, opts ...Option) *Quorum {
	all := make([]Client, len(clients))
	for i, client := range clients {
		all[i] = client
	}
	s, each := settleQuorum(all, opts)
	q := &Quorum{timeout: s.serverTimeout, mistake: errors.Join(s.mistakes...)}
	if q.mistake != nil {
		return q
	}
	for i, client := range all {
		h := New(client, each)
		q.members = append(q.members, &member{name: serverName(i, client), handler: h, repeats: h.knowsServer(), lanes: make(map[claimID]*lane)})
	}
	return q
}

// Release implements [loki.LockHandler]. It returns when a majority of the servers does not hold the claim: then it is
// over, and the key free. The others are asked as well, and those that do not answer are asked again, after the return,
// until the claim would have expired there, for half a minute at most.
//
// A server on which a lock or a renewal of the claim is still on its way is asked when that has returned.
func (q *Quorum) Release(ctx context.Context, c loki.Claim) error {
	_, err := q.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld implements [loki.Releaser]. The claim did not hold if a majority of the servers is sure that it had nothing
// to release.
func (q *Quorum) ReleaseHeld(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := q.check(ctx, func(h *Handler) error { return h.check(c) }); err != nil {
		return false, err
	}
	r := q.newRound(q.patience(anyExpiry))
	for i, m := range q.members {
		step := func(l *lane) {
			m.letGo(context.WithoutCancel(ctx), l, c, whicheverGrant, func(v Vote) { r.vote(i, v) })
		}
		if !m.submit(idOf(c), maxLateReleases, step) {
			r.vote(i, Vote{Verdict: VerdictUnreachable, Err: errNotAsked})
		}
	}
	b, d, err := r.count(ctx, func(b *ballot) decision {
		var d decision
		d, held = b.ofRelease()
		return d
	})
	switch {
	case err != nil:
		return false, err
	case d == won:
		return held, nil
	}
	return false, b.failure("release", c.Key, d)
}

// Inspect implements [loki.Inspector]. Somebody holds the key if a majority of the servers says so of one token; nobody
// does if no token can have a majority. The times are those of one of these servers. Replicas may answer.
func (q *Quorum) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := q.check(ctx, func(h *Handler) error { return h.checkKey(key) }); err != nil {
		return loki.Holder{}, false, err
	}
	r := q.newRound(q.patience(anyExpiry))
	r.ask(ctx, claimID{}, func(ctx context.Context, m *member, repeated bool) Vote { return m.handler.look(ctx, key, repeated) }, nil)
	b, d, err := r.count(ctx, (*ballot).ofInspect)
	switch {
	case err != nil:
		return loki.Holder{}, false, err
	case d == won:
		return b.holder(), true, nil
	case d == lost:
		return loki.Holder{}, false, nil
	}
	return loki.Holder{}, false, b.failure("inspect", key, d)
}

// Validate implements [loki.Validator]. It returns every mistake that was made in calling [NewQuorum], and sends nothing.
func (q *Quorum) Validate() error {
	if q == nil || q.members == nil && q.mistake == nil {
		return errors.New("redishandler: this Quorum was not made by NewQuorum")
	}
	return q.mistake
}

// check refuses what a server's handler would refuse, and a context that has ended.
func (q *Quorum) check(ctx context.Context, rule func(*Handler) error) error {
	if err := q.Validate(); err != nil {
		return err
	}
	if err := rule(q.members[0].handler); err != nil {
		return err
	}
	return ctx.Err()
}

// look asks one server who holds.
func (h *Handler) look(ctx context.Context, key string, repeated bool) Vote {
	reply, err := h.run(ctx, how{op: acquiring, repeated: repeated}, lookScript, key).StringSlice()
	switch {
	case err != nil:
		return failure(h.classify(ctx, key, err))
	case len(reply) == 0:
		return Vote{Verdict: VerdictNotHeld}
	case len(reply) == 5:
		return heldVote(reply)
	}
	return failure(malformed(reply))
}
