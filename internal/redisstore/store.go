// Package redisstore keeps claims in Redis: what redishandler does with one server, a replicated one or a cluster, and
// redlockhandler with each of several independent servers. It has the scripts, the connections over which they are sent,
// and the meaning of what servers and clients answer.
//
// It does not name a package in its errors: the handlers put their own names before them. Its tests are those of the two
// handlers, which use it as their users do.
package redisstore

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
	"github.com/lokilock/loki/internal/retry"
)

// Client is what a Store asks of a client: to run a script.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// Settings are how claims are stored.
type Settings struct {
	Prefix      string // begins every key
	LokiNetKeys bool   // name locks as LokiNet does; no fencing tokens and no released tokens then
	FenceTTL    time.Duration
	Ack         ReplicaAck
}

// Store keeps claims by the scripts in lua. It is safe for concurrent use, and holds no state between calls but who
// listens, and whose replica its server was.
type Store struct {
	client   Client
	naming   naming
	fenceTTL time.Duration
	ack      ReplicaAck

	batches   batcher
	listeners *listeners // nil if the client cannot subscribe
	waking    string     // the command by which the scripts wake listeners
	scripts   *scripts

	master struct { // whose replica the server is
		sync.Mutex
		asked   time.Time
		address string
	}
}

// New returns a Store that uses client, which must not be nil. The client stays the caller's: it is never closed or
// reconfigured.
func New(client Client, settings Settings) *Store {
	s := &Store{
		client:    client,
		naming:    naming{prefix: settings.Prefix, lokiNet: settings.LokiNetKeys},
		fenceTTL:  settings.FenceTTL,
		ack:       settings.Ack,
		listeners: newListeners(client),
		waking:    wakingCommand(client),
	}
	if s.scripts = publishing; s.waking == "SPUBLISH" {
		s.scripts = publishingInShard
	}
	s.batches.carry = s.carry
	return s
}

// IsNil finds the nil pointer inside a non-nil interface too, which would only show as a nil dereference.
func IsNil(client Client) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Grant is that of [loki.Granter]. If the claim is refused, it returns the owner token that holds as well.
func (s *Store) Grant(ctx context.Context, c loki.Claim) (grant loki.Grant, owner string, err error) {
	if err := CheckLasting(c); err != nil {
		return loki.Grant{}, "", err
	}
	r := s.request(acquiring, c)
	r.words = append(r.words, &r.claim.Token, &r.expiry, &r.claim.Holder, &r.life)
	if c.Fence != 0 || c.Supersedes != "" {
		r.words = append(r.words, &r.claim.Fence, &r.claim.Supersedes)
	}
	cmd, unconfirmed := r.confirmed(ctx, s.scripts.grant)
	if err := cmd.Err(); err != nil {
		return loki.Grant{}, "", s.classify(ctx, c.Key, err)
	}
	grant, owner, err = s.naming.parseGrant(cmd.Val())
	if err != nil {
		return loki.Grant{}, "", s.misread(ctx, c.Key, err)
	}
	if grant.Held && unconfirmed != nil { // not released: another request of the same claim may be confirmed, or has been
		return loki.Grant{}, "", unconfirmed
	}
	return grant, owner, nil
}

// Extend is that of [loki.Extender].
func (s *Store) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := CheckLasting(c); err != nil {
		return false, err
	}
	r := s.request(renewing, c)
	r.words = append(r.words, &r.claim.Token, &r.expiry, &r.life)
	cmd, unconfirmed := r.confirmed(ctx, s.scripts.extend)
	if err := cmd.Err(); err != nil {
		return false, s.classify(ctx, c.Key, err)
	}
	if held, err = parseYes(cmd.Val()); err != nil || !held {
		return false, err
	}
	return unconfirmed == nil, unconfirmed
}

// ExtendAll is that of [loki.BatchExtender], for a client of one server: with a cluster or a ring the claims would be on many,
// and the error matches [errors.ErrUnsupported]. It is one script for all, which takes three quarters of the server's time that
// as many in a pipeline take.
func (s *Store) ExtendAll(ctx context.Context, claims []loki.Claim) ([]loki.Extended, error) {
	if _, one := s.client.(*redis.Client); !one {
		return nil, fmt.Errorf("the client is no *redis.Client, but a %T: %w", s.client, errors.ErrUnsupported)
	}
	answers := make([]loki.Extended, len(claims))
	asked := make([]int, 0, len(claims))
	for i, c := range claims {
		if answers[i].Err = CheckLasting(c); answers[i].Err == nil {
			asked = append(asked, i)
		}
	}
	if len(asked) == 0 || ctx.Err() != nil {
		return answers, ctx.Err()
	}
	r := s.request(renewing, claims[asked[0]])
	each := r.keys
	words, args, times := make([]any, 3, 3+(each+3)*len(asked)), make([]any, 0, 3*len(asked)), make([]int64, 2*len(asked))
	r.keys = each * len(asked)
	words[2] = r.keys
	for n, i := range asked {
		lock, companion := s.naming.both(claims[i].Key)
		if words = append(words, lock); each == 2 {
			words = append(words, companion)
		}
		expiry, life := &times[2*n], &times[2*n+1]
		*expiry = milliseconds(claims[i].Expiry)
		*life = *expiry + milliseconds(s.fenceTTL)
		args = append(args, &claims[i].Token, expiry, life)
	}
	r.words = append(words, args...)
	cmd, _ := r.confirmed(ctx, s.scripts.extendAll)
	if err := cmd.Err(); err != nil {
		return nil, s.classify(ctx, r.claim.Key, err)
	}
	replies, ok := cmd.Val().([]any)
	if !ok || len(replies) != len(asked) {
		return nil, malformed(cmd.Val())
	}
	for n, i := range asked {
		a, key := &answers[i], claims[i].Key
		if text, failed := replies[n].(string); failed {
			a.Err = s.classify(ctx, key, scriptError(text))
		} else if a.Held, a.Err = parseYes(replies[n]); a.Held && r.confirm {
			a.Err = s.tooFew(ctx, key, r.message.wait)
			a.Held = a.Err == nil
		}
	}
	return answers, nil
}

// AnyFence stands for a fence in [Store.Release] where whichever grant of the claim there is shall be released.
const AnyFence = 0

// Release is that of [loki.Releaser], of one grant of the claim by its fence, or of [AnyFence]. With once it reports
// whether the claim held, and true where it cannot be sure that the request was sent once. A mirrored claim's token is
// remembered for c.Expiry.
//
// The companion of another one keeps the time that it got with the claim, which is at most c.Expiry too long, unless that is
// longer than a fence is remembered.
func (s *Store) Release(ctx context.Context, c loki.Claim, fence int64, once bool) (held bool, err error) {
	if err := CheckClaim(c); err != nil {
		return false, err
	}
	r := s.request(releasing, c)
	r.once = once
	r.words = append(r.words, &r.claim.Token)
	if r.life = milliseconds(s.fenceTTL); c.Mirrored || c.Quiet || c.Expiry > s.fenceTTL || fence != AnyFence {
		if !c.Mirrored {
			r.expiry = 0
		}
		r.words = append(r.words, &r.expiry, &r.life, c.Quiet, fence)
	}
	cmd := r.run(ctx, s.scripts.release)
	if err := cmd.Err(); err != nil {
		return false, s.classify(ctx, c.Key, err)
	}
	if held, err = parseYes(cmd.Val()); err != nil {
		return false, err
	}
	return held || r.unsure, nil
}

// Fence returns the fence with which the server has the claim, and whether it does. With LokiNet's keys it is zero.
func (s *Store) Fence(ctx context.Context, c loki.Claim) (fence int64, held bool, err error) {
	r := s.request(releasing, c)
	r.words = append(r.words, &r.claim.Token)
	cmd := r.run(ctx, s.scripts.fence)
	if err := cmd.Err(); err != nil {
		return 0, false, s.classify(ctx, c.Key, err)
	}
	switch reply := cmd.Val().(type) {
	case int64:
		if reply >= 0 {
			return reply, true, nil
		}
	case string:
		if reply == "" {
			return 0, false, nil
		}
	}
	return 0, false, malformed(cmd.Val())
}

// Inspect is that of [loki.Inspector], and returns the owner token as well. A replica may answer.
func (s *Store) Inspect(ctx context.Context, key string, repeated bool) (holder loki.Holder, owner string, held bool, err error) {
	if err := CheckKey(key); err != nil {
		return loki.Holder{}, "", false, err
	}
	cmd := s.request(acquiring, loki.Claim{Key: key, Repeated: repeated}).run(ctx, s.scripts.inspect)
	if err := cmd.Err(); err != nil {
		return loki.Holder{}, "", false, s.classify(ctx, key, err)
	}
	holder, owner, held, err = s.naming.parseInspected(cmd.Val())
	if err != nil {
		return loki.Holder{}, "", false, s.misread(ctx, key, err)
	}
	return holder, owner, held, nil
}

// misread is classify for a reply that is no error and from which none was read.
func (s *Store) misread(ctx context.Context, key string, err error) error {
	if err == errForeign { //nolint:errorlint // the very one
		return s.classify(ctx, key, err)
	}
	return err
}

// lookAgain has a cluster's client ask who has which slot if a command got no reply: the master may have been replaced.
// By itself go-redis goes on asking the old one for ClusterStateReloadInterval, a minute. It does so in the background,
// once however often it is told.
func (s *Store) lookAgain(ctx context.Context, err error) {
	var reply redis.Error
	_, moved := redis.IsMovedError(err) // to a subscription, which go-redis does not redirect
	if err == nil || errors.As(err, &reply) && !moved && !redis.IsReadOnlyError(err) {
		return
	}
	if c, ok := s.client.(interface{ ReloadState(ctx context.Context) }); ok {
		c.ReloadState(ctx)
	}
}

// CheckClaim refuses a claim that could not be told from others once it is stored. The Locker creates none such.
func CheckClaim(c loki.Claim) error {
	if err := CheckKey(c.Key); err != nil {
		return err
	}
	if c.Token == "" || strings.Contains(c.Token, " ") { // a space ends the token in the lock's value
		return fmt.Errorf("the claim of %q has an owner token that is empty or has a space in it", c.Key)
	}
	return nil
}

// CheckLasting is [CheckClaim] for a claim that is to be kept.
func CheckLasting(c loki.Claim) error {
	if err := CheckClaim(c); err != nil {
		return err
	}
	if c.Expiry <= 0 {
		return fmt.Errorf("the claim of %q has an expiry of %v: it must be positive", c.Key, c.Expiry)
	}
	if c.Fence < 0 {
		return fmt.Errorf("the claim of %q has the fence %d: it cannot be negative", c.Key, c.Fence)
	}
	return nil
}

// CheckKey refuses an empty key, which would be no hash tag.
func CheckKey(key string) error {
	if key == "" {
		return errors.New("the claim's key is empty")
	}
	return nil
}

// milliseconds rounds up: a lock must not end before its time, and zero would mean something else to Redis.
func milliseconds(d time.Duration) int64 { return retry.Ceil(d, time.Millisecond) }
