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
	bounded  func() *redis.Client // client with deadlines on its connections; nil if there is no such client
	naming   naming
	fenceTTL time.Duration
	ack      ReplicaAck

	batches   batcher
	listeners *listeners // nil if the client cannot subscribe
	waking    string     // the command by which the scripts wake listeners

	master struct { // whose replica the server is
		sync.Mutex
		asked   time.Time
		address string
	}
}

// New returns a Store that uses client, which must not be nil. The client stays the caller's: it is never closed or
// reconfigured.
func New(client Client, s Settings) *Store {
	return &Store{
		client:    client,
		bounded:   boundedClient(client, s.Ack),
		naming:    naming{prefix: s.Prefix, lokiNet: s.LokiNetKeys},
		fenceTTL:  s.FenceTTL,
		ack:       s.Ack,
		listeners: newListeners(client),
		waking:    wakingCommand(client),
	}
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
	cmd, unconfirmed := s.confirmed(ctx, how{op: acquiring, repeated: c.Repeated, bounded: c.Bounded}, grantScript, c.Key,
		c.Token, milliseconds(c.Expiry), c.Holder, c.Fence, c.Supersedes, milliseconds(s.fenceTTL), s.waking)
	reply, err := cmd.StringSlice()
	if err != nil {
		return loki.Grant{}, "", s.classify(ctx, c.Key, err)
	}
	grant, owner, err = parseGrant(reply)
	if err == nil && grant.Held && unconfirmed != nil { // not released: another request of the same claim may be confirmed, or has been
		return loki.Grant{}, "", unconfirmed
	}
	return grant, owner, err
}

// Extend is that of [loki.Extender].
func (s *Store) Extend(ctx context.Context, c loki.Claim) (held bool, err error) {
	if err := CheckLasting(c); err != nil {
		return false, err
	}
	cmd, unconfirmed := s.confirmed(ctx, how{op: renewing, repeated: c.Repeated, bounded: c.Bounded}, extendScript, c.Key, c.Token, milliseconds(c.Expiry), milliseconds(s.fenceTTL), s.waking)
	reply, err := cmd.Text()
	if err != nil {
		return false, s.classify(ctx, c.Key, err)
	}
	if reply != "1" {
		return false, nil
	}
	return unconfirmed == nil, unconfirmed
}

// AnyFence stands for a fence in [Store.Release] where whichever grant of the claim there is shall be released.
const AnyFence = 0

// Release is that of [loki.Releaser], of one grant of the claim by its fence, or of [AnyFence]. With once it reports
// whether the claim held, and true where it cannot be sure that the request was sent once. A mirrored claim's token is
// remembered for c.Expiry.
func (s *Store) Release(ctx context.Context, c loki.Claim, fence int64, once bool) (held bool, err error) {
	if err := CheckClaim(c); err != nil {
		return false, err
	}
	keep := int64(0)
	if c.Mirrored {
		keep = milliseconds(max(c.Expiry, 0))
	}
	waking := s.waking
	if c.Quiet {
		waking = ""
	}
	args := []any{c.Token, keep, milliseconds(s.fenceTTL), waking}
	if fence != AnyFence {
		args = append(args, fence)
	}
	e := &evaluator{how: how{op: releasing, repeated: c.Repeated, bounded: c.Bounded, once: once}, store: s}
	reply, err := e.run(ctx, releaseScript, c.Key, args...).Text()
	if err != nil {
		return false, s.classify(ctx, c.Key, err)
	}
	return reply == "1" || e.unsure, nil
}

// Fence returns the fence with which the server has the claim, and whether it does. With LokiNet's keys it is zero.
func (s *Store) Fence(ctx context.Context, c loki.Claim) (fence int64, held bool, err error) {
	reply, err := s.run(ctx, how{op: releasing, repeated: c.Repeated}, fenceScript, c.Key, c.Token).Text()
	if err != nil {
		return 0, false, s.classify(ctx, c.Key, err)
	}
	fence, err = parseNumber(reply)
	if err != nil {
		return 0, false, malformed([]string{reply})
	}
	return fence, reply != "", nil
}

// Inspect is that of [loki.Inspector], and returns the owner token as well. A replica may answer.
func (s *Store) Inspect(ctx context.Context, key string, repeated bool) (holder loki.Holder, owner string, held bool, err error) {
	if err := CheckKey(key); err != nil {
		return loki.Holder{}, "", false, err
	}
	reply, err := s.run(ctx, how{op: acquiring, repeated: repeated}, inspectScript, key).StringSlice()
	if err != nil {
		return loki.Holder{}, "", false, s.classify(ctx, key, err)
	}
	if len(reply) == 0 {
		return loki.Holder{}, "", false, nil
	}
	holder, owner, err = parseHolder(reply)
	if err != nil {
		return loki.Holder{}, "", false, malformed(reply)
	}
	return holder, owner, true, nil
}

// run sends a script of which nothing but the reply is of interest.
func (s *Store) run(ctx context.Context, op how, sc script, key string, args ...any) *redis.Cmd {
	e := &evaluator{how: op, store: s}
	return e.run(ctx, sc, key, args...)
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
