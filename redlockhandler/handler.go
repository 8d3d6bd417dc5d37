package redlockhandler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

// Handler is a [loki.LockHandler] of several independent Redis servers, with every capability that they can have:
// [loki.Granter] without fencing tokens, [loki.Extender], [loki.Releaser], [loki.Notifier], [loki.Inspector] and
// [loki.Validator]. It is safe for concurrent use.
type Handler struct {
	servers []*server
	timeout time.Duration // zero: the default
	mistake error         // of New's caller; every method returns it

	mu        sync.Mutex // guards elections
	elections map[claimID]*election
}

// Client is what a Handler asks of each client: to run a script. Every client of go-redis does, and whatever wraps one. It
// must be safe for concurrent use, as these are.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// New returns a Handler of the clients' servers: an odd number, three at least. The clients stay the caller's: they are
// never closed or reconfigured. They may be of any type, one server each. All instances that share a lock have to use the
// same servers.
//
// Too few clients, an even number of them, a nil one, two for one server or a wrong option show in [Handler.Validate], which
// loki's Build calls, and in every other method.
func New[C Client](clients []C, opts ...Option) *Handler {
	all := make([]Client, len(clients))
	for i, client := range clients {
		all[i] = client
	}
	settings := collect(opts)
	settings.checkClients(all)
	h := &Handler{timeout: settings.serverTimeout, mistake: errors.Join(settings.mistakes...)}
	if h.mistake != nil {
		return h
	}
	for i, client := range all {
		h.servers = append(h.servers, newServer(serverName(i, client), client, settings.Settings))
	}
	return h
}

// Release implements [loki.LockHandler]. It returns when a majority of the servers does not hold the claim: then it is
// over, and the key free. The others are asked as well, and those that do not answer are asked again, after the return,
// until the claim would have expired there, for half a minute at most. If there is no such majority the error is an [*Error],
// and the caller repeats the release.
//
// A server on which a lock or a renewal of the claim is still on its way is asked when that has returned.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	_, err := h.ReleaseHeld(ctx, c)
	return err
}

// ReleaseHeld implements [loki.Releaser]. The claim did not hold if a majority of the servers is sure that it had nothing
// to release.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (held bool, err error) {
	ctx, cancel := untilDeadline(ctx)
	defer cancel()
	if err := h.check(ctx, redisstore.CheckClaim(c)); err != nil {
		return false, err
	}
	r := h.newRound(h.patience(anyExpiry))
	d := undecided // the steps below wait for it
	defer func() { r.settle(d) }()
	for i, s := range h.servers {
		step := func(l *lane) { s.release(context.WithoutCancel(ctx), l, c, r, i) }
		if !s.submit(idOf(c), maxLateReleases, step) {
			r.vote(i, Vote{Verdict: VerdictUnreachable, Err: errNotAsked})
		}
	}
	var b *ballot
	b, d, err = r.count(ctx, func(b *ballot) (d decision) {
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

// Inspect implements [loki.Inspector]. The key is held if a majority of the servers reports one and the same token, and free if
// no token can have a majority. The times are those of one of these servers. Replicas may answer.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := h.check(ctx, redisstore.CheckKey(key)); err != nil {
		return loki.Holder{}, false, err
	}
	r := h.newRound(h.patience(anyExpiry))
	r.ask(ctx, claimID{}, func(ctx context.Context, s *server, repeated bool) Vote { return s.inspect(ctx, key, repeated) }, nil)
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

// Validate implements [loki.Validator]. It returns every mistake that was made in calling [New], and sends nothing.
func (h *Handler) Validate() error {
	if h == nil || h.servers == nil && h.mistake == nil {
		return errors.New("redlockhandler: this Handler was not made by New")
	}
	return h.mistake
}

// check refuses a claim with wrong, if that is not nil, and a context that has ended.
func (h *Handler) check(ctx context.Context, wrong error) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("redlockhandler: %w", wrong)
	}
	return ctx.Err()
}
