package redistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long a master may be silent before a sentinel takes it for down: forever in effect, or, where
// [AllowFailover] says so, so briefly that a failover takes some three seconds.
const (
	sentinelPatience  = time.Hour
	sentinelDownAfter = 500 * time.Millisecond
)

// topologyTimeout is for servers to agree on who they are. A cluster takes three seconds on an idle machine.
const topologyTimeout = 30 * time.Second

// StartReplica starts a server that replicates another, and waits until it has a copy. The address is that of the master,
// or of a proxy to it. Restarted, it would be a master.
func StartReplica(tb TB, master string, args ...string) *Server {
	tb.Helper()
	host, port, _ := strings.Cut(master, ":")
	s := Start(tb, args...)
	client := s.Client(tb)
	do(tb, client, "REPLICAOF", host, port) // on the command line it would begin a second later
	until(tb, "the replica's link to "+master, func(ctx context.Context) bool {
		return strings.Contains(client.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	return s
}

// StartSentinels starts three sentinels that watch a master, its replicas and each other under a name, and of which two
// have to agree. It returns when all of them know all others. The replicas must be there. The sentinels replace the master
// only when a test asks for it: on a busy machine a healthy server may be silent for long, and a failover that no test
// expects loses its last writes.
func StartSentinels(tb TB, name string, master *Server, replicas int) []*Server {
	tb.Helper()
	var err error
	for range startAttempts {
		var sentinels []*Server
		if sentinels, err = startSentinels(tb, name, master); err == nil {
			for _, s := range sentinels {
				s.awaitSentinel(tb, name, replicas, len(sentinels)-1)
			}
			return sentinels
		}
		for _, s := range sentinels {
			s.Kill()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	tb.Fatalf("redistest: the sentinels: %v", err)
	return nil
}

// AllowFailover has the sentinels of [StartSentinels] replace a master that is silent, or no longer do so.
func AllowFailover(tb TB, name string, sentinels []*Server, allow bool) {
	tb.Helper()
	downAfter := sentinelPatience
	if allow {
		downAfter = sentinelDownAfter
	}
	for _, s := range sentinels {
		do(tb, s.Client(tb), "SENTINEL", "SET", name, "down-after-milliseconds", downAfter.Milliseconds())
	}
}

// startSentinels introduces the sentinels to each other in their configuration. They would find each other by messages
// as well, in some seconds.
func startSentinels(tb TB, name string, master *Server) ([]*Server, error) {
	tb.Helper()
	sentinels := make([]*Server, 3)
	ids := make([]string, len(sentinels))
	for i := range sentinels {
		sentinels[i] = prepare(tb, "--sentinel")
		sentinels[i].port = freePort(tb)
		id := make([]byte, 20)
		_, _ = rand.Read(id)
		ids[i] = hex.EncodeToString(id)
	}
	for i, s := range sentinels {
		var config strings.Builder
		fmt.Fprintf(&config, "sentinel myid %s\nsentinel monitor %s 127.0.0.1 %d 2\n", ids[i], name, master.port)
		fmt.Fprintf(&config, "sentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 5000\nsentinel parallel-syncs %s 9\n",
			name, sentinelPatience.Milliseconds(), name, name)
		for j, other := range sentinels {
			if j != i {
				fmt.Fprintf(&config, "sentinel known-sentinel %s 127.0.0.1 %d %s\n", name, other.port, ids[j])
			}
		}
		s.conf = filepath.Join(s.dir, "sentinel.conf") // a sentinel keeps its state in it
		if err := os.WriteFile(s.conf, []byte(config.String()), 0o600); err != nil {
			return sentinels, err
		}
		if err := s.run(); err != nil {
			return sentinels, err
		}
	}
	return sentinels, nil
}

func (s *Server) awaitSentinel(tb TB, name string, replicas, others int) {
	tb.Helper()
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = client.Close() }()
	until(tb, "the sentinel's view of "+name, func(ctx context.Context) bool {
		seen := client.Master(ctx, name).Val()
		return seen["flags"] == "master" && seen["num-slaves"] == fmt.Sprint(replicas) && seen["num-other-sentinels"] == fmt.Sprint(others) &&
			client.CkQuorum(ctx, name).Err() == nil
	})
}

// until polls, and fails the test after a while.
func until(tb TB, what string, condition func(ctx context.Context) bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), topologyTimeout)
	defer cancel()
	for !condition(ctx) {
		select {
		case <-ctx.Done():
			tb.Fatalf("redistest: %s is not ready after %v", what, topologyTimeout)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
