package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// ReplicaAck says how many replicas have to acknowledge a write, and how long that may take. The zero value waits for none.
type ReplicaAck struct {
	Replicas int
	Timeout  time.Duration
}

// server is a client of one server at a time: [redis.Client], also for Sentinel. Conn tells it from clients that choose
// a server for each command, and would send WAIT to any.
type server interface {
	Conn() *redis.Conn
	pool
}

// cluster is [redis.ClusterClient]. Its own pipeline sends WAIT, which has no key, to a node of its choice, so the node
// is found here and a redirection followed here.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachShard(ctx context.Context, fn func(ctx context.Context, client *redis.Client) error) error
	Options() *redis.ClusterOptions
}

// Mistake returns why this client cannot wait for replicas; empty if it can, or need not.
func (a ReplicaAck) Mistake(client Client) string {
	if a.Replicas == 0 {
		return ""
	}
	var readTimeout time.Duration
	switch c := client.(type) {
	case cluster:
		readTimeout = c.Options().ReadTimeout
	case server:
		if c, ok := client.(interface{ Options() *redis.Options }); ok {
			readTimeout = c.Options().ReadTimeout
		}
	default:
		return fmt.Sprintf("WithReplicaAck cannot be kept with a %T: it needs a *redis.Client or a *redis.ClusterClient, whose connection to a lock's server is known", client)
	}
	if readTimeout > 0 && a.Timeout >= readTimeout {
		return fmt.Sprintf("WithReplicaAck may wait for %v, and the client gives up reading after %v: make its ReadTimeout longer", a.Timeout, readTimeout)
	}
	return ""
}

// confirmed is run for a script whose write has to reach replicas. The error says why it is not known to have reached
// them, and is nil if the script itself failed.
func (r *request) confirmed(ctx context.Context, sc script) (cmd *redis.Cmd, unconfirmed error) {
	r.confirm = r.store.ack.Replicas > 0
	cmd = r.run(ctx, sc)
	if r.confirm && cmd.Err() == nil {
		unconfirmed = r.store.tooFew(ctx, r.claim.Key, r.message.wait)
	}
	return cmd, unconfirmed
}

// tooFew returns an error unless WAIT has counted enough replicas.
func (s *Store) tooFew(ctx context.Context, key string, wait *redis.IntCmd) error {
	acknowledged, err := wait.Result()
	if err != nil {
		return s.classify(ctx, key, err)
	}
	if acknowledged >= int64(s.ack.Replicas) {
		return nil
	}
	return loki.Unavailable(fmt.Errorf("the claim of %q was recorded, and %d of %d replicas acknowledged it within %v: see whether they are attached and keep up",
		key, acknowledged, s.ack.Replicas, s.ack.Timeout))
}

// find returns the node at an address, nil if there is none. ForEachShard looks at the cluster anew.
func find(ctx context.Context, c cluster, address string) *redis.Client {
	found := make(chan *redis.Client, 1)
	_ = c.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error { // many at once
		if node.Options().Addr == address {
			select {
			case found <- node:
			default:
			}
		}
		return nil
	})
	select {
	case node := <-found:
		return node
	default:
		return nil
	}
}
