package redishandler

// This file is the options of NewQuorum, and what can be wrong with its clients.

import (
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// leastServers is the smallest quorum that survives the loss of a server.
const leastServers = 3

// WithServerTimeout has a [Quorum] wait for one server for d instead of [DefaultServerTimeout], whatever the expiry. It has
// to be positive. It should be far below the expiry, since a majority that comes when half of that is over is none, and
// several times shorter than [loki.Config.PrimaryTimeout], within which a majority that was missed is given back and votes
// that were split are cast again. It is for [NewQuorum] only.
func WithServerTimeout(d time.Duration) Option {
	return func(s *settings) {
		if d <= 0 {
			s.mistake("a server timeout of %v would let no server answer: it must be positive", d)
		}
		s.serverTimeout = d
	}
}

// settleQuorum is settle with what is special about a quorum, and returns the options for each server's handler.
func settleQuorum(clients []Client, opts []Option) (settings, Option) {
	s := settle(opts)
	if s.setFenceTTL {
		s.mistake("WithFenceTTL has no effect in a quorum, which offers no fences: leave it out")
	}
	if s.ack.replicas > 0 {
		s.mistake("WithReplicaAck is not for a quorum: its servers have to be independent of each other, and a replica is no server of its own: leave it out")
	}
	s.checkClients(clients)
	return s, func(each *settings) {
		each.naming = s.naming
		each.fenceTTL = time.Millisecond // a companion lives as long as it has a released token to tell
	}
}

// checkClients looks for what would make a majority no majority.
func (s *settings) checkClients(clients []Client) {
	switch n := len(clients); {
	case n < leastServers:
		s.mistake("a quorum of %d servers does not survive the loss of one: give NewQuorum three, five or seven", n)
	case n%2 == 0:
		s.mistake("a quorum of %d servers survives the loss of no more servers than one of %d: add a server or take one away", n, n-1)
	}
	for i, client := range clients {
		if isNil(client) {
			s.mistake("the client of server %d is nil: make one with redis.NewClient, or pass the one you have", i+1)
			continue
		}
		for j, other := range clients[:i] {
			if !isNil(other) && sameServer(client, other) {
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
	return address(a) != "" && address(a) == address(b)
}

// address is where the server is, as far as the client tells. One for Sentinel has a word in the place of an address.
func address(client Client) string {
	c, ok := client.(interface{ Options() *redis.Options })
	if !ok || c.Options() == nil || c.Options().Addr == "FailoverClient" {
		return ""
	}
	return c.Options().Addr
}

// serverName is what a server is called in a [Vote].
func serverName(i int, client Client) string {
	name := fmt.Sprintf("server %d", i+1)
	if isNil(client) || address(client) == "" {
		return name
	}
	return name + " at " + address(client)
}
