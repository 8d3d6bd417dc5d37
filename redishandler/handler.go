package redishandler

// This file is the handler: one method an operation, and what goes in and comes out of its script.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// Client is what a Handler asks of a client: to run a script. Every client of go-redis does: [redis.Client] (also for
// Sentinel), [redis.ClusterClient], [redis.Ring], and whatever wraps one. It must be safe for concurrent use, as these
// are. A pipeline is none: it does not answer until it is executed.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// Handler is a [loki.LockHandler] that keeps claims in Redis, with every capability: [loki.Granter], [loki.Extender],
// [loki.Notifier], [loki.Inspector] and [loki.Validator]. It is safe for concurrent use, and holds no state between
// calls but who listens.
type Handler struct {
	client   Client
	naming   naming
	fenceTTL time.Duration
	mistake  error // of New's caller; every method returns it

	listeners *listeners // nil if the client cannot subscribe
	waking    string     // the command by which the scripts wake listeners
}

// New returns a Handler that uses client, which stays the caller's: it is never closed or reconfigured.
//
// A nil client or a wrong option shows in [Handler.Validate], which loki's Build calls, and in every other method.
func New(client Client, opts ...Option) *Handler {
	s := settle(opts)
	if isNil(client) {
		s.mistake("the client is nil: make one with redis.NewClient, or pass the one you have")
	}
	return &Handler{
		client:    client,
		naming:    s.naming,
		fenceTTL:  s.fenceTTL,
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
	if err := h.check(c); err != nil {
		return err
	}
	keep := int64(0)
	if c.Mirrored {
		keep = milliseconds(max(c.Expiry, 0))
	}
	waking := h.waking
	if c.Quiet {
		waking = ""
	}
	_, err := h.run(ctx, releaseScript, c.Key, c.Token, keep, milliseconds(h.fenceTTL), waking).Text()
	return h.classify(ctx, c.Key, err)
}

// Grant implements [loki.Granter].
func (h *Handler) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	if err := h.checkLasting(c); err != nil {
		return loki.Grant{}, err
	}
	reply, err := h.run(ctx, grantScript, c.Key,
		c.Token, milliseconds(c.Expiry), c.Holder, c.Fence, c.Supersedes, milliseconds(h.fenceTTL), h.waking).StringSlice()
	if err != nil {
		return loki.Grant{}, h.classify(ctx, c.Key, err)
	}
	return parseGrant(reply)
}

// Extend implements [loki.Extender].
func (h *Handler) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := h.checkLasting(c); err != nil {
		return false, err
	}
	reply, err := h.run(ctx, extendScript, c.Key, c.Token, milliseconds(c.Expiry), milliseconds(h.fenceTTL), h.waking).Text()
	return reply == "1", h.classify(ctx, c.Key, err)
}

// Inspect implements [loki.Inspector]. The key is a claim's. A replica may answer, with what it knows.
func (h *Handler) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	if err := h.checkKey(key); err != nil {
		return loki.Holder{}, false, err
	}
	reply, err := h.run(ctx, inspectScript, key).StringSlice()
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

// run sends a script, unless ctx has ended: not every client looks before it sends.
func (h *Handler) run(ctx context.Context, s script, key string, args ...any) *redis.Cmd {
	if err := ctx.Err(); err != nil {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(err)
		return cmd
	}
	return s.run(ctx, h.client, h.naming.keys(key), args...)
}

// check refuses a claim that could not be told from others once it is stored. The Locker makes none such.
func (h *Handler) check(c loki.Claim) error {
	if err := h.checkKey(c.Key); err != nil {
		return err
	}
	if c.Token == "" || strings.Contains(c.Token, " ") { // a space ends the token in the lock's value
		return fmt.Errorf("redishandler: the claim of %q has the token %q: it must be there and have no spaces in it", c.Key, c.Token)
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

// parseGrant reads the result of grant.lua.
func parseGrant(reply []string) (grant loki.Grant, err error) {
	switch {
	case len(reply) == 3 && reply[0] == "1":
		grant = loki.Grant{Held: true, Released: reply[1]}
		grant.Fence, err = strconv.ParseInt(reply[2], 10, 64)
	case len(reply) == 6 && reply[0] == "0":
		grant = loki.Grant{Released: reply[1]}
		grant.HeldBy, err = parseHolder(reply[2:])
	default:
		err = errMalformed
	}
	if err != nil {
		return loki.Grant{}, malformed(reply)
	}
	return grant, nil
}

// parseHolder reads a holder's name and three numbers of ms, empty where they are not known: since, until and left.
func parseHolder(reply []string) (loki.Holder, error) {
	if len(reply) != 4 {
		return loki.Holder{}, errMalformed
	}
	since, err1 := parseTime(reply[1])
	until, err2 := parseTime(reply[2])
	left, err3 := parseMilliseconds(reply[3])
	return loki.Holder{ID: reply[0], Since: since, Until: until, Left: time.Duration(min(left, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond}, errors.Join(err1, err2, err3)
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	ms, err := parseMilliseconds(s)
	return time.UnixMilli(ms), err
}

func parseMilliseconds(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

var errMalformed = errors.New("not one of the script's")

func malformed(reply []string) error {
	return fmt.Errorf("redishandler: the server's answer %q is not one of the script's: is something between it and the client?", reply)
}
