package redistest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

const (
	clusterSlots   = 16384
	clusterBusStep = 10000 // a node talks to the others at its port and this
)

// Cluster is a Redis Cluster of a test's own.
type Cluster struct {
	Masters  []*Server
	Replicas []*Server // the one at i copies the master at i
}

// StartCluster starts a cluster whose masters share the slots evenly, each with one replica if there are to be any, and
// waits until all nodes agree. A master that is down is replaced within some three seconds. The arguments are added to
// every node's command line.
func StartCluster(tb TB, masters int, withReplicas bool, args ...string) *Cluster {
	tb.Helper()
	args = append([]string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
		"--repl-ping-replica-period", "1",
	}, args...)
	c := &Cluster{}
	for range masters {
		c.Masters = append(c.Masters, Start(tb, args...))
		if withReplicas {
			c.Replicas = append(c.Replicas, Start(tb, args...))
		}
	}
	first := c.Masters[0].Client(tb)
	for i, node := range c.nodes() {
		do(tb, node.Client(tb), "CLUSTER", "SET-CONFIG-EPOCH", i+1) // or they would first have to settle who is who
		do(tb, first, "CLUSTER", "MEET", "127.0.0.1", node.port)
	}
	for i, master := range c.Masters {
		slots := []any{"CLUSTER", "ADDSLOTS"} // ADDSLOTSRANGE is there from 7.0 on
		for slot := i * clusterSlots / masters; slot < (i+1)*clusterSlots/masters; slot++ {
			slots = append(slots, slot)
		}
		do(tb, master.Client(tb), slots...)
	}
	for _, node := range c.nodes() {
		client := node.Client(tb)
		until(tb, "the cluster's bus", func(ctx context.Context) bool {
			return strings.Contains(client.ClusterInfo(ctx).Val(), fmt.Sprintf("cluster_known_nodes:%d\r", len(c.nodes())))
		})
	}
	for i, replica := range c.Replicas {
		do(tb, replica.Client(tb), "CLUSTER", "REPLICATE", c.Masters[i].Client(tb).Do(context.Background(), "CLUSTER", "MYID").Val())
	}
	c.Await(tb)
	return c
}

func (c *Cluster) nodes() []*Server {
	return append(append([]*Server(nil), c.Masters...), c.Replicas...)
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, 0, len(c.nodes()))
	for _, node := range c.nodes() {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// Client returns a client of the cluster, closed with the test.
func (c *Cluster) Client(tb TB, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	opts := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, f := range change {
		f(opts)
	}
	client := redis.NewClusterClient(opts)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Await waits until every node takes the cluster for whole and each replica has its master's data.
func (c *Cluster) Await(tb TB) {
	tb.Helper()
	for _, node := range c.nodes() {
		client := node.Client(tb)
		until(tb, "the cluster as "+node.Addr()+" sees it", func(ctx context.Context) bool {
			ranges, err := slots(ctx, client)
			whole := err == nil && len(ranges) == len(c.Masters)
			for _, r := range ranges {
				whole = whole && len(r.Nodes) == 1+len(c.Replicas)/len(c.Masters)
			}
			info := client.Info(ctx, "replication").Val()
			return whole && strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok") &&
				(strings.Contains(info, "role:master") || strings.Contains(info, "master_link_status:up"))
		})
	}
}

// Of returns the master that has a key's slot by the cluster's own word, and the other masters.
func (c *Cluster) Of(tb TB, key string) (owner *Server, others []*Server) {
	tb.Helper()
	ctx := context.Background()
	slot := int(c.Masters[0].Client(tb).ClusterKeySlot(ctx, key).Val())
	ranges, err := slots(ctx, c.Masters[0].Client(tb))
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	for _, r := range ranges {
		if r.Start <= slot && slot <= r.End {
			for _, node := range c.nodes() {
				if node.Addr() == r.Nodes[0].Addr {
					owner = node
				}
			}
		}
	}
	for _, node := range c.Masters {
		if node != owner {
			others = append(others, node)
		}
	}
	if owner == nil {
		tb.Fatalf("redistest: nobody has the slot of %q", key)
	}
	return owner, others
}

// slots is who has which of them. Redis 6.2 has no other command for it.
func slots(ctx context.Context, client *redis.Client) ([]redis.ClusterSlot, error) {
	return client.ClusterSlots(ctx).Result() //nolint:staticcheck // see above
}

func do(tb TB, client *redis.Client, args ...any) {
	tb.Helper()
	if err := client.Do(context.Background(), args...).Err(); err != nil {
		tb.Fatalf("redistest: %v: %v", args[:2], err)
	}
}

// freeClusterPort is freePort with the port of the cluster's bus free as well.
func freeClusterPort(tb TB) int {
	tb.Helper()
	for range 1000 {
		port := freePort(tb)
		if port+clusterBusStep > 65535 {
			continue
		}
		bus, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+clusterBusStep)))
		if err == nil {
			_ = bus.Close()
			return port
		}
	}
	tb.Fatalf("redistest: no free pair of ports for a cluster's node")
	return 0
}
