package redishandler

// This file is one connection that listens: what it hears, and who is told of it.

import (
	"context"
	"errors"

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

// hear tells a feed's listeners what comes in, until the feed is closed, or the client is. The first answer is received
// here, since a go-redis channel keeps a refusal to itself and asks again for ever.
func (l *listeners) hear(ctx context.Context, f *feed) {
	first, err := f.pubsub.Receive(ctx)
	if _, refused := errors.AsType[redis.Error](err); refused {
		if l.sharded && isUnknownCommand(err) {
			l.unsharded.Store(true)
		}
		l.giveUp(f, err)
		_ = f.pubsub.Close()
		return
	}
	if err == nil {
		l.heard(f, first)
	}
	for message := range f.pubsub.ChannelWithSubscriptions() {
		l.heard(f, message)
	}
	l.giveUp(f, redis.ErrClosed)
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
