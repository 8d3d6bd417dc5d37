package redishandler

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redisstore"
)

// Client is what a Handler asks of a client: to run a script. Every client of go-redis does: [redis.Client] (also for
// Sentinel), [redis.ClusterClient], [redis.Ring], and whatever wraps one. It must be safe for concurrent use, as these
// are. A pipeline is none: it does not answer until it is executed. A Ring that takes a server for down moves its locks to
// another, where they are free, unless its HeartbeatFn says that all are up.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// Handler is a [loki.LockHandler] that keeps claims in Redis, with every capability that a single store can have:
// [loki.Granter], [loki.Extender], [loki.BatchExtender], [loki.Releaser], [loki.Notifier], [loki.Inspector], [loki.Bounder] and
// [loki.Validator]. It is safe for concurrent use.
type Handler struct {
	store   *redisstore.Store
	mistake error // of New's caller; every method returns it
}

// New returns a Handler that uses client, which stays the caller's: it is never closed or reconfigured.
//
// A nil client or a wrong option shows in [Handler.Validate], which loki's Build calls, and in every other method.
func New(client Client, opts ...Option) *Handler {
	s := collect(opts)
	if redisstore.IsNil(client) {
		s.mistake("the client is nil: make one with redis.NewClient, or pass the one you have")
	} else if wrong := s.Ack.Mistake(client); wrong != "" {
		s.mistake("%s", wrong)
	}
	if s.mistakes != nil {
		return &Handler{mistake: errors.Join(s.mistakes...)}
	}
	return &Handler{store: redisstore.New(client, s.Settings)}
}

// Lock tries once to record the claim, with its expiry counted by the server's clock, and returns false if another token
// holds the key. It is [Handler.Grant] without the details.
//
// A claim that already holds is granted again, and its expiry starts anew. A server that may not be written to, such as a
// replica, is an error that [loki.IsUnavailable] reports, never a "false".
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	grant, err := h.Grant(ctx, c)
	return grant.Held, err
}

// Grant is [Handler.Lock] with the fencing token that was issued, who holds the key if not the claim, and the token of the
// mirrored claim that was last released. It is one round trip.
//
// A fencing token is the server's clock in microseconds, or more if [loki.Claim.Fence] or the last token is: then the floor,
// or the last one plus one. One beyond 2^53, which that clock reaches in the year 2255, is refused with a permanent error.
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.Validate(); err != nil {
		return loki.Grant{}, err
	}
	grant, _, err := h.store.Grant(ctx, c)
	return grant, named(ctx, err)
}

// Extend restarts the expiry of a claim that still holds the key, and returns false if its token does not. It never
// acquires the lock anew. A server that is out of memory still extends.
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	held, err = h.store.Extend(ctx, c)
	return held, named(ctx, err)
}

// ExtendAll is [Handler.Extend] of each claim, in one script. It is for a [redis.Client], also one for Sentinel: with any other
// client, whose locks may be on several servers, the error matches [errors.ErrUnsupported], and each claim is extended by itself.
func (h *Handler) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	answers, err := h.store.ExtendAll(ctx, claims)
	for i, a := range answers {
		answers[i].Err = named(ctx, a.Err)
	}
	return answers, named(ctx, err)
}

// Release deletes the claim's key if its token still holds it, and wakes those who wait, unless the claim is
// [loki.Claim.Quiet]. The token of a mirrored claim is remembered for c.Expiry, for the next [loki.Grant.Released].
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	if err := h.Validate(); err != nil {
		return err
	}
	_, err := h.store.Release(ctx, c, redisstore.AnyFence, false)
	return named(ctx, err)
}

// ReleaseHeld is [Handler.Release], and reports whether the claim held until then. It is certain only if the request was
// sent once, by a client of go-redis itself: a wrapper may have sent it again. Otherwise it returns true.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	held, err = h.store.Release(ctx, c, redisstore.AnyFence, true)
	return held, named(ctx, err)
}

// Notify listens for releases of the key, and for expiries that are made shorter, until ctx ends. It returns when the
// server has confirmed the subscription. All callers share one connection, which is opened for the first and closed after
// the last of them; with a [redis.ClusterClient], where a message stays in its shard, and with a [redis.Ring], it is one for
// each lock. go-redis restores a connection that broke; whoever listens is then woken, since something may have been missed.
//
// With a client that cannot subscribe the error matches [errors.ErrUnsupported]. A user of the server who may not subscribe
// gets a permanent error. The Locker polls in both cases.
func (h *Handler) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	frees, err := h.store.Notify(ctx, key)
	return frees, named(ctx, err)
}

// Inspect returns who holds the key, the key of a claim, and false if nobody does. A replica may answer, with what it knows.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := h.Validate(); err != nil {
		return loki.Holder{}, false, err
	}
	holder, _, held, err := h.store.Inspect(ctx, key, false)
	return holder, held, named(ctx, err)
}

// Bounds reports whether the Locker may call on its caller's goroutine: whether the client is a [redis.Client], also one
// for Sentinel, its options have ContextTimeoutEnabled, and no replica has to acknowledge (see [WithReplicaAck]).
func (h *Handler) Bounds() bool { return h != nil && h.store != nil && h.store.Bounds() }

// Validate returns every mistake that was made in calling [New], and sends nothing.
func (h *Handler) Validate() error {
	if h == nil || h.store == nil && h.mistake == nil {
		return errors.New("redishandler: this Handler was not made by New")
	}
	return h.mistake
}

// named puts the package's name before an error, but for the end of ctx, which comes back as it is.
func named(ctx context.Context, err error) error {
	if err == nil || err == ctx.Err() { //nolint:errorlint // the very one
		return err
	}
	return fmt.Errorf("redishandler: %w", err)
}
