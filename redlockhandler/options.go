package redlockhandler

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/lokilock/loki/internal/redisstore"
)

// Option changes how a [Handler] stores locks, or how it asks its servers. All instances that share a lock have to use the
// same options.
//
// An option with a mistake in it does not fail by itself: [Handler.Validate], which loki's Build calls, names it.
type Option func(*settings)

type settings struct {
	redisstore.Settings
	serverTimeout time.Duration // zero: the default
	mistakes      []error
}

func (s *settings) mistake(format string, args ...any) {
	s.mistakes = append(s.mistakes, fmt.Errorf("redlockhandler: "+format, args...))
}

// WithPrefix has every key begin with prefix instead of "loki:". It must be valid UTF-8 without braces and control
// characters. It may be empty: then a lock's key is the name in braces and nothing else.
func WithPrefix(prefix string) Option {
	return func(s *settings) {
		if wrong := redisstore.PrefixMistake(prefix); wrong != "" {
			s.mistake("the prefix %q %s", prefix, wrong)
		}
		s.Prefix = prefix
	}
}

// WithLokiNetKeys names each lock's key as LokiNet, the library for .NET, does: for a fleet that moves from one to the
// other, and with what that costs; see the option of the same name in package redishandler.
func WithLokiNetKeys() Option { return func(s *settings) { s.LokiNetKeys = true } }

// WithServerTimeout has a [Handler] wait for one server for d instead of [DefaultServerTimeout], whatever the expiry. It has
// to be positive. It should be far below the expiry, since a majority that comes when half of that is over is none, and
// several times shorter than [loki.Config.PrimaryTimeout], within which votes that are split are cast again.
func WithServerTimeout(d time.Duration) Option {
	return func(s *settings) {
		if d <= 0 {
			s.mistake("a server timeout of %v would let no server answer: it must be positive", d)
		}
		s.serverTimeout = d
	}
}

// collect applies the options to the defaults.
func collect(opts []Option) settings {
	s := settings{Settings: redisstore.Settings{
		Prefix:   redisstore.DefaultPrefix,
		FenceTTL: time.Millisecond, // a companion lives as long as it has a released token to tell
	}}
	for _, opt := range opts {
		if opt == nil {
			s.mistakes = append(s.mistakes, errors.New("redlockhandler: an Option is nil"))
			continue
		}
		opt(&s)
	}
	return s
}

// leastServers is the smallest number of servers that survives the loss of one.
const leastServers = 3

// checkClients looks for what would make a majority no majority.
func (s *settings) checkClients(clients []Client) {
	switch n := len(clients); {
	case n < leastServers:
		s.mistake("a majority of %d servers does not survive the loss of one: give New three, five or seven", n)
	case n%2 == 0:
		s.mistake("a majority of %d servers survives the loss of no more servers than one of %d: add a server or take one away", n, n-1)
	}
	for i, client := range clients {
		if redisstore.IsNil(client) {
			s.mistake("the client of server %d is nil: make one with redis.NewClient, or pass the one you have", i+1)
			continue
		}
		for j, other := range clients[:i] {
			if !redisstore.IsNil(other) && sameServer(client, other) {
				s.mistake("the clients of servers %d and %d are for the same server, which would vote twice: each needs a server of its own", j+1, i+1)
			}
		}
	}
}

// sameServer reports whether two clients are known to be for one server. Two databases of one are lost together.
func sameServer(a, b Client) bool {
	if reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b {
		return true
	}
	return redisstore.Address(a) != "" && redisstore.Address(a) == redisstore.Address(b)
}

// serverName is what a server is called in a [Vote].
func serverName(i int, client Client) string {
	name := fmt.Sprintf("server %d", i+1)
	if at := redisstore.Address(client); at != "" {
		name += " at " + at
	}
	return name
}
