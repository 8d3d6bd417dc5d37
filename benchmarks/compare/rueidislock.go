package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockContender is rueidislock with what its README says for one server of Redis 7.0.5 or later: KeyMajority 1 and
// NoLoopTracking. Its TryNextAfter, how long it waits for an answer before it tries the next server, has to be longer than its
// default of 20 ms: after that time a waiter that missed an answer is never woken again.
type rueidislockContender struct{ locker rueidislock.Locker }

func openRueidislock(addr string, expiry time.Duration) (contender, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    expiry,
		TryNextAfter:   patience,
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockContender{locker}, nil
}

func (r *rueidislockContender) try(ctx context.Context, key string, fn func()) error {
	_, release, err := r.locker.TryWithContext(ctx, key)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return errBusy
	}
	return r.run(release, err, fn)
}

func (r *rueidislockContender) wait(ctx context.Context, key string, fn func()) error {
	_, release, err := r.locker.WithContext(ctx, key)
	return r.run(release, err, fn)
}

func (r *rueidislockContender) run(release context.CancelFunc, err error, fn func()) error {
	if err != nil {
		return err
	}
	if fn != nil {
		fn()
	}
	release() // it returns when the server has answered
	return nil
}

func (r *rueidislockContender) close() error {
	r.locker.Close()
	return nil
}
