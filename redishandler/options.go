package redishandler

import (
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/redisstore"
)

// DefaultPrefix begins every key that a Handler writes, unless [WithPrefix] says otherwise.
const DefaultPrefix = redisstore.DefaultPrefix

// DefaultFenceTTL is how long the last fence of a lock is remembered after its claim's end, unless [WithFenceTTL] says
// otherwise.
const DefaultFenceTTL = 24 * time.Hour

// Option changes how a [Handler] stores locks. All instances that share a lock have to use the same options.
//
// An option with a mistake in it does not fail by itself: [Handler.Validate], which loki's Build calls, names it.
type Option func(*settings)

type settings struct {
	redisstore.Settings
	setFenceTTL bool
	mistakes    []error
}

func (s *settings) mistake(format string, args ...any) {
	s.mistakes = append(s.mistakes, fmt.Errorf("redishandler: "+format, args...))
}

// WithPrefix has every key begin with prefix instead of [DefaultPrefix]. It must be valid UTF-8 without braces and
// control characters. It may be empty: then a lock's key is the name in braces and nothing else.
func WithPrefix(prefix string) Option {
	return func(s *settings) {
		if wrong := redisstore.PrefixMistake(prefix); wrong != "" {
			s.mistake("the prefix %q %s", prefix, wrong)
		}
		s.Prefix = prefix
	}
}

// WithFenceTTL has the last fence of a lock, and so its companion key, live for d after the claim's end instead of
// [DefaultFenceTTL]; what a released claim had left of its expiry comes on top, if that expiry was at most d. It must be
// positive; it is kept to the millisecond, rounded up. After it a fence starts from the server's clock, which is larger
// still unless that clock was set back or another store's fence was ahead of it.
func WithFenceTTL(d time.Duration) Option {
	return func(s *settings) {
		if d <= 0 {
			s.mistake("a fence TTL of %v is too short: it must be positive", d)
		}
		s.FenceTTL, s.setFenceTTL = d, true
	}
}

// WithLokiNetKeys names each lock's key as LokiNet, the library for .NET that this one descends from, does: the bare
// service key. Instances of both then exclude each other while a fleet moves from one to the other.
//
// A claim is the only key then. There are no fences, no memory of the last released token, and no prefix to tell a
// lock from other data: a string that is not a claim is taken for LokiNet's. Its text is not
// repeated as a holder's name, since it may be an application's. LokiNet has no resources, so a lock with one keeps the key
// that it has without this option. In Redis Cluster such locks work as well, but neither library promises anything of it.
func WithLokiNetKeys() Option { return func(s *settings) { s.LokiNetKeys = true } }

// WithReplicaAck has a claim count as held only once n replicas have it, so that it survives a failover to one of them:
// a master promises a lock before its replicas know of it. WAIT follows each claim and each renewal in the same round
// trip, for timeout at most (in ms, rounded up), which must be shorter than the client's ReadTimeout and should be well
// below [loki.Config.PrimaryTimeout].
//
// If fewer acknowledge in time, the error says how many and is [loki.Unavailable]. The claim is recorded then, and who asked
// for it releases it, as after every error: the Locker does so at once, unless another attempt of the same call was
// acknowledged. What was acknowledged before a renewal stands until its expiry, and the Locker asks again. So a lock ends, or
// lives by the secondary, when fewer than n replicas are there for longer than its expiry: n should be less than their
// number. While too few are there, also a refusal takes as long as timeout.
//
// It is no consensus. The promise holds if what is promoted is among the replicas that acknowledged: with n smaller than
// the number of replicas, that is the failover's choice, which goes by how far each has got. The client has to be a
// [redis.Client], also for Sentinel, or a [redis.ClusterClient].
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(s *settings) {
		if n <= 0 {
			s.mistake("WithReplicaAck of %d replicas asks for nothing: leave it out, or ask for one at least", n)
		}
		if timeout <= 0 {
			s.mistake("WithReplicaAck with a timeout of %v would not end, or not wait: it must be positive", timeout)
		}
		s.Ack = redisstore.ReplicaAck{Replicas: n, Timeout: timeout}
	}
}

// collect applies the options to the defaults.
func collect(opts []Option) settings {
	s := settings{Settings: redisstore.Settings{Prefix: DefaultPrefix, FenceTTL: DefaultFenceTTL}}
	for _, opt := range opts {
		if opt == nil {
			s.mistakes = append(s.mistakes, errors.New("redishandler: an Option is nil"))
			continue
		}
		opt(&s)
	}
	if s.LokiNetKeys && s.setFenceTTL {
		s.mistake("WithFenceTTL has no effect with WithLokiNetKeys, which keeps no fences: leave one of them out")
	}
	return s
}
