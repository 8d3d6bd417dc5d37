package redisstore

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// feed is one connection and the channels it listens to. Its pubsub is set once, with listeners.commands held.
type feed struct {
	pubsub *redis.PubSub
	topics map[string]*topic
}

// topic is one channel: a value in told says that its lock may be free.
type topic struct {
	told    map[chan struct{}]struct{}
	ready   chan struct{} // closed when the server has answered the subscription
	refused error         // the answer, if it was no; not to be read before
}

// heartbeat is how long a feed may be silent before it is asked for a sign of life, and how long that may take. A dead
// connection is replaced after twice that at most. go-redis's own channel sends pings and does not look for the answers:
// to a connection that died in silence it listens for a quarter of an hour.
const heartbeat = 2 * time.Second

// reconnectPause is the pause between two failures of a feed.
const reconnectPause = 100 * time.Millisecond

// hear tells a feed's listeners what comes in, until the feed is closed, or the client is, or the server refuses.
func (l *listeners) hear(ctx context.Context, f *feed) {
	answered, asked := false, false
	for failures := 0; ; {
		message, err := receive(ctx, f.pubsub, asked)
		var silence net.Error
		switch {
		case err == nil:
			answered, asked, failures = true, false, 0
			l.heard(f, message)
		case errors.Is(err, redis.ErrClosed):
			l.giveUp(f, redis.ErrClosed)
			return
		case !answered && isReply(err):
			if l.sharded && isUnknownCommand(err) {
				l.unsharded.Store(true)
			}
			l.giveUp(f, err)
			_ = f.pubsub.Close()
			return
		case errors.As(err, &silence) && silence.Timeout() && !asked:
			asked = f.pubsub.Ping(ctx) == nil
		default: // go-redis has made a new connection, or does so with the next call
			asked = false
			if failures++; failures > 1 {
				time.Sleep(reconnectPause)
			}
		}
	}
}

// receive returns the next message. If there is none in time it returns a timeout, and go-redis keeps the connection, or
// drops it, with last.
func receive(ctx context.Context, pubsub *redis.PubSub, last bool) (any, error) {
	if !last {
		return pubsub.ReceiveTimeout(ctx, heartbeat)
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	return pubsub.Receive(ctx)
}

func isReply(err error) bool {
	_, is := errors.AsType[redis.Error](err)
	return is
}

func (l *listeners) heard(f *feed, message any) {
	switch m := message.(type) {
	case *redis.Subscription:
		switch m.Kind {
		case "subscribe", "ssubscribe":
			l.tell(f, m.Channel) // also when it is one that was restored
		case "sunsubscribe": // the slot has moved, and the server hears for it no longer
			_ = f.pubsub.Close()
		}
	case *redis.Message:
		l.tell(f, m.Channel)
	}
}

// giveUp ends a feed and tells its listeners so. There are none left if the last of them has closed it.
func (l *listeners) giveUp(f *feed, reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, t := range f.topics {
		select {
		case <-t.ready:
		default:
			t.refused = reason
			close(t.ready)
		}
		for told := range t.told {
			close(told)
		}
		if l.feeds[l.name(channel)] == f {
			delete(l.feeds, l.name(channel))
		}
	}
	f.topics = nil
}

// tell wakes the listeners of a channel. The first message is the server's confirmation, which wakes nobody.
func (l *listeners) tell(f *feed, channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := f.topics[channel]
	if t == nil {
		return
	}
	select {
	case <-t.ready:
	default:
		close(t.ready)
		return
	}
	for told := range t.told {
		select {
		case told <- struct{}{}:
		default: // it has one to read
		}
	}
}
