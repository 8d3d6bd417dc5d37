package redishandler

// This file is the handler: one method an operation, and what goes in and comes out of its script.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// Client is what a Handler asks of a client: to run a script. Every client of go-redis does: [redis.Client] (also for
// Sentinel), [redis.ClusterClient], [redis.Ring], and whatever wraps one. It must be safe for concurrent use, as these
// are. A pipeline is none: it does not answer until it is executed. A Ring that takes a server for down moves its locks to
// another, where they are free, unless its HeartbeatFn says that all are up.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// Handler is a [loki.LockHandler] that keeps claims in Redis, with every capability: [loki.Granter], [loki.Extender],
// [loki.Notifier], [loki.Inspector] and [loki.Validator]. It is safe for concurrent use, and holds no state between
// calls but who listens, and whose replica its server was.
type Handler struct {
	client   Client
	naming   naming
	fenceTTL time.Duration
	ack      replicaAck
	mistake  error // of New's caller; every method returns it

	batches   batcher
	listeners *listeners // nil if the client cannot subscribe
	waking    string     // the command by which the scripts wake listeners

	master struct { // whose replica the server is
		sync.Mutex
		asked   time.Time
		address string
	}
}

// New returns a Handler that uses client, which stays the caller's: it is never closed or reconfigured.
//
// A nil client or a wrong option shows in [Handler.Validate], which loki's Build calls, and in every other method.
func New(client Client, opts ...Option) *Handler {
	s := settle(opts)
	if isNil(client) {
		s.mistake("the client is nil: make one with redis.NewClient, or pass the one you have")
	} else if s.ack.replicas > 0 {
		if wrong := s.ack.mistake(client); wrong != "" {
			s.mistake("%s", wrong)
		}
	}
	if s.serverTimeout != 0 {
		s.mistake("WithServerTimeout is for NewQuorum only: the Locker bounds the calls of a single server")
	}
	return &Handler{
		client:    client,
		naming:    s.naming,
		fenceTTL:  s.fenceTTL,
		ack:       s.ack,
		mistake:   errors.Join(s.mistakes...),
		listeners: newListeners(client),
		waking:    wakingCommand(client),
	}
}

// isNil finds the nil pointer inside a non-nil interface too, which would only show as a nil dereference.
func isNil(client Client) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Lock implements [loki.LockHandler]. It is [Handler.Grant] without the details.
func (h *Handler) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	grant, err := h.Grant(ctx, c)
	return grant.Held, err
}

// Release implements [loki.LockHandler]. The token of a mirrored claim is remembered for c.Expiry.
func (h *Handler) Release(ctx context.Context, c loki.Claim) error {
	_, err := h.release(ctx, c, "", false)
	return err
}

// ReleaseHeld implements [loki.Releaser]. It is sure of what it found only if the request was sent once, by a client of
// go-redis itself: a wrapper may have sent it again.
func (h *Handler) ReleaseHeld(ctx context.Context, c loki.Claim) (held bool, err error) {
	return h.release(ctx, c, "", true)
}

// release is Release of one grant of the claim alone, by its fence, or of whichever there is. With once it reports
// whether the claim held, and true where it cannot tell.
func (h *Handler) release(ctx context.Context, c loki.Claim, fence string, once bool) (held bool, err error) {
	if err := h.check(c); err != nil {
		return false, err
	}
	keep := int64(0)
	if c.Mirrored {
		keep = milliseconds(max(c.Expiry, 0))
	}
	waking := h.waking
	if c.Quiet {
		waking = ""
	}
	args := []any{c.Token, keep, milliseconds(h.fenceTTL), waking}
	if fence != "" {
		args = append(args, fence)
	}
	e := &evaluator{how: how{op: releasing, repeated: c.Repeated, once: once}, handler: h}
	reply, err := e.run(ctx, releaseScript, c.Key, args...).Text()
	if err != nil {
		return false, h.classify(ctx, c.Key, err)
	}
	return reply == "1" || e.unsure, nil
}

// Grant implements [loki.Granter].
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.checkLasting(c); err != nil {
		return loki.Grant{}, err
	}
	cmd, unconfirmed := h.confirmed(ctx, how{op: acquiring, repeated: c.Repeated}, grantScript, c.Key,
		c.Token, milliseconds(c.Expiry), c.Holder, c.Fence, c.Supersedes, milliseconds(h.fenceTTL), h.waking)
	reply, err := cmd.StringSlice()
	if err != nil {
		return loki.Grant{}, h.classify(ctx, c.Key, err)
	}
	grant, err := parseGrant(reply)
	if err == nil && grant.Held && unconfirmed != nil { // not released: another request of the same claim may be confirmed, or has been
		return loki.Grant{}, unconfirmed
	}
	return grant, err
}

// Extend implements [loki.Extender].
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := h.checkLasting(c); err != nil {
		return false, err
	}
	cmd, unconfirmed := h.confirmed(ctx, how{op: renewing, repeated: c.Repeated}, extendScript, c.Key, c.Token, milliseconds(c.Expiry), milliseconds(h.fenceTTL), h.waking)
	reply, err := cmd.Text()
	if err != nil {
		return false, h.classify(ctx, c.Key, err)
	}
	if reply != "1" {
		return false, nil
	}
	return unconfirmed == nil, unconfirmed
}

// Inspect implements [loki.Inspector]. The key is a claim's. A replica may answer, with what it knows.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := h.checkKey(key); err != nil {
		return loki.Holder{}, false, err
	}
	reply, err := h.run(ctx, how{op: acquiring}, inspectScript, key).StringSlice()
	if err != nil {
		return loki.Holder{}, false, h.classify(ctx, key, err)
	}
	if len(reply) == 0 {
		return loki.Holder{}, false, nil
	}
	holder, err := parseHolder(reply)
	if err != nil {
		return loki.Holder{}, false, malformed(reply)
	}
	return holder, true, nil
}

// Validate implements [loki.Validator]. It returns every mistake that was made in calling [New], and sends nothing.
func (h *Handler) Validate() error {
	if h == nil || h.client == nil && h.mistake == nil {
		return errors.New("redishandler: this Handler was not made by New")
	}
	return h.mistake
}

// run sends a script of which nothing but the reply is of interest.
func (h *Handler) run(ctx context.Context, op how, s script, key string, args ...any) *redis.Cmd {
	e := &evaluator{how: op, handler: h}
	return e.run(ctx, s, key, args...)
}

// lookAgain has a cluster's client ask who has which slot if a command got no reply: the master may have been replaced.
// By itself go-redis goes on asking the old one for ClusterStateReloadInterval, a minute. It does so in the background,
// once however often it is told.
func (h *Handler) lookAgain(ctx context.Context, err error) {
	var reply redis.Error
	_, moved := redis.IsMovedError(err) // to a subscription, which go-redis does not redirect
	if err == nil || errors.As(err, &reply) && !moved && !redis.IsReadOnlyError(err) {
		return
	}
	if c, ok := h.client.(interface{ ReloadState(ctx context.Context) }); ok {
		c.ReloadState(ctx)
	}
}

// check refuses a claim that could not be told from others once it is stored. The Locker makes none such.
func (h *Handler) check(c loki.Claim) error {
	if err := h.checkKey(c.Key); err != nil {
		return err
	}
	if c.Token == "" || strings.Contains(c.Token, " ") { // a space ends the token in the lock's value
		return fmt.Errorf("redishandler: the claim of %q has an owner token that is empty or has a space in it", c.Key)
	}
	return nil
}

// checkLasting is check for a claim that is to be kept.
func (h *Handler) checkLasting(c loki.Claim) error {
	if err := h.check(c); err != nil {
		return err
	}
	if c.Expiry <= 0 {
		return fmt.Errorf("redishandler: the claim of %q has an expiry of %v: it must be positive", c.Key, c.Expiry)
	}
	if c.Fence < 0 {
		return fmt.Errorf("redishandler: the claim of %q has the fence %d: it cannot be negative", c.Key, c.Fence)
	}
	return nil
}

func (h *Handler) checkKey(key string) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if key == "" { // in braces it would be no hash tag
		return errors.New("redishandler: the claim's key is empty")
	}
	return nil
}

// milliseconds rounds up: a lock must not end before its time, and zero would mean something else to Redis.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}
