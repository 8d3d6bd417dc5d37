package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// closed returns an error if the client has been closed. It sends nothing: a pool looks at that before it looks at ctx.
func closed(ctx context.Context, client *redis.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := client.Process(ctx, redis.NewCmd(ctx, "ping")); errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}

// broken reports whether a command failed with its connection, or for want of one, so that a new one may do better. A
// dial that failed, or a handshake (its Op is "remote error"), would fail again.
func broken(err error) bool {
	var reply redis.Error
	if err == nil || errors.As(err, &reply) {
		return false
	}
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, redis.ErrPoolTimeout, redis.ErrPoolExhausted} {
		if errors.Is(err, e) {
			return true
		}
	}
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "read" || op.Op == "write")
}

// sendFresh sends over a connection that it makes to the node's server and closes afterwards. Whatever has broken one
// connection of the node's pool has usually broken them all, also those that a pool of ours would keep. The batcher bounds
// how many there are at once.
func sendFresh(ctx context.Context, node *redis.Client, ack ReplicaAck, messages []*message) {
	client := redis.NewClient(freshOptions(*node.Options()))
	defer func() { _ = client.Close() }()
	sendOver(ctx, client, ack, messages)
}

// freshOptions are the options of a client that lives for one request: the caller's, without what would cost a round
// trip, keep a connection, or repeat a command.
func freshOptions(o redis.Options) *redis.Options {
	o.Dialer = patiently(o.Dialer)
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxActiveConns, o.PipelinePoolSize = 1, 0, 0, -1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ClientSideCache, o.ClientSideCacheConfig, o.PushNotificationProcessor = nil, nil, nil
	return &o
}

// A dial may hang as a connection may: that of a Sentinel's client asks a sentinel first, over a pooled connection. So
// another one is made after dialPause, and the first that succeeds is used.
const (
	dialPause = 50 * time.Millisecond
	maxDials  = 3
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

func patiently(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		type dialed struct {
			conn net.Conn
			err  error
		}
		results := make(chan dialed)
		begin := func() {
			go func() {
				conn, err := dial(ctx, network, address)
				select {
				case results <- dialed{conn, err}:
				case <-ctx.Done():
					if err == nil {
						_ = conn.Close()
					}
				}
			}()
		}
		begin()
		pause := time.NewTicker(dialPause)
		defer pause.Stop()
		for dials := 1; ; {
			select {
			case d := <-results:
				return d.conn, d.err
			case <-pause.C:
				if dials < maxDials {
					dials++
					begin()
				}
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}
