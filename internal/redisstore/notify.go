package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// subscriber is what a client can do besides [Client] if it can listen; every client of go-redis can.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Notify is that of [loki.Notifier], by a message that the scripts publish. All callers share one connection, which is
// opened for the first and closed after the last of them; with a [redis.ClusterClient], where a message stays in its
// shard, and with a [redis.Ring], it is one for each lock. go-redis restores a connection that broke; whoever listens
// is then woken, since something may have been missed.
//
// With a client that cannot subscribe the error matches [errors.ErrUnsupported].
func (s *Store) Notify(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if s.listeners == nil {
		return nil, errors.ErrUnsupported
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	told, err := s.listeners.join(ctx, s.naming.channel(key))
	if isUnknownCommand(err) && s.listeners.unsharded.Load() { // which has just turned out
		told, err = s.listeners.join(ctx, s.naming.channel(key))
	}
	s.lookAgain(ctx, err)
	return told, s.classify(ctx, key, err)
}

// listeners is everybody who listens, by channel.
type listeners struct {
	client  subscriber
	sharded bool // a message stays in the shard of its channel
	single  bool // one connection can hear every channel

	unsharded atomic.Bool // a cluster that turned out to be older than its messages in shards, 7.0

	// commands keeps subscribing and unsubscribing in the order in which listeners come and go: an unsubscription
	// that overtakes the next listener's subscription would leave that one deaf. It is held while a command is sent,
	// and is a channel of one so that a caller whose ctx ends need not wait for another's dial.
	commands chan struct{}

	mu    sync.Mutex // guards what follows, and the feeds; never held while a command is sent
	feeds map[string]*feed
}

// newListeners returns nil if the client cannot subscribe.
func newListeners(client Client) *listeners {
	l := &listeners{commands: make(chan struct{}, 1), feeds: make(map[string]*feed)}
	switch c := client.(type) {
	case *redis.ClusterClient:
		l.client, l.sharded = c, true
	case *redis.Client:
		l.client, l.single = c, true
	case subscriber: // a Ring, or a wrapper of who knows what
		l.client = c
	default:
		return nil
	}
	return l
}

// wakingCommand is what the scripts publish with. In a cluster a message of PUBLISH would go to every node.
func wakingCommand(client Client) string {
	if _, ok := client.(*redis.ClusterClient); ok {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// join adds a listener and returns when the server hears for it.
func (l *listeners) join(ctx context.Context, channel string) (<-chan struct{}, error) {
	select {
	case l.commands <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	told, t, first := l.add(channel)
	var err error
	if first {
		err = l.subscribe(ctx, channel)
	}
	<-l.commands
	if err == nil {
		select {
		case <-t.ready:
			if err = t.refused; err == nil {
				context.AfterFunc(ctx, func() { l.leave(ctx, channel, told) })
				return told, nil
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.leave(ctx, channel, told)
	return nil, err
}

// name is the feed that a channel is heard on.
func (l *listeners) name(channel string) string {
	if l.single {
		return ""
	}
	return channel
}

// add makes room for a listener, and reports whether it is the first of its channel.
func (l *listeners) add(channel string) (told chan struct{}, t *topic, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.feeds[l.name(channel)]
	if f == nil {
		f = &feed{topics: make(map[string]*topic)}
		l.feeds[l.name(channel)] = f
	}
	t = f.topics[channel]
	if t == nil {
		first = true
		t = &topic{told: make(map[chan struct{}]struct{}), ready: make(chan struct{})}
		f.topics[channel] = t
	}
	told = make(chan struct{}, 1)
	t.told[told] = struct{}{}
	return told, t, first
}

// subscribe is called with commands held.
func (l *listeners) subscribe(ctx context.Context, channel string) error {
	l.mu.Lock()
	f := l.feeds[l.name(channel)]
	l.mu.Unlock()
	if f == nil { // its connection was given up at this very moment
		return redis.ErrClosed
	}
	opened := f.pubsub == nil
	var err error
	switch {
	case !opened:
		err = f.pubsub.Subscribe(ctx, channel)
	case l.single:
		f.pubsub = l.client.Subscribe(ctx)
		err = f.pubsub.Subscribe(ctx, channel)
	case l.sharded && !l.unsharded.Load():
		f.pubsub = l.client.(interface {
			SSubscribe(ctx context.Context, channels ...string) *redis.PubSub
		}).SSubscribe(ctx, channel)
	default: // a Ring needs the channel to find the shard
		f.pubsub = l.client.Subscribe(ctx, channel)
	}
	if opened {
		go l.hear(context.WithoutCancel(ctx), f)
	}
	return err
}

// leave removes a listener, and what was there for it alone.
func (l *listeners) leave(ctx context.Context, channel string, told chan struct{}) {
	l.commands <- struct{}{}
	defer func() { <-l.commands }()
	l.mu.Lock()
	f := l.feeds[l.name(channel)]
	var t *topic
	if f != nil {
		t = f.topics[channel]
	}
	if t == nil {
		l.mu.Unlock()
		return // its feed was given up
	}
	delete(t.told, told)
	lastOfTopic := len(t.told) == 0
	if lastOfTopic {
		delete(f.topics, channel)
	}
	lastOfFeed := len(f.topics) == 0
	if lastOfFeed {
		delete(l.feeds, l.name(channel))
	}
	l.mu.Unlock()
	switch {
	case f.pubsub == nil:
	case lastOfFeed:
		_ = f.pubsub.Close() // what it cannot close is closed
	case lastOfTopic:
		// If it fails the connection is broken, and is restored without the channel.
		_ = f.pubsub.Unsubscribe(context.WithoutCancel(ctx), channel)
	}
}
