package main

// This file is the servers of a primary that is a quorum: they keep their data when they are killed, and what comes back
// without it has been away until all that it had promised was over.

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/internal/retry"
)

// voter is one server of a quorum.
type voter struct {
	*redistest.Server
	name   string // as the referee has it
	client *redis.Client
	dir    string
	died   time.Duration // when it was last killed
}

// startVoters starts n servers that have written what they promise before they answer.
func startVoters(tb redistest.TB, n int) ([]*voter, error) {
	var all []*voter
	for i := range n {
		dir, err := os.MkdirTemp("", "lokiprove-server-")
		if err != nil {
			return nil, err
		}
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		v := &voter{name: referee.Server(i + 1), dir: dir}
		patiently(tb, func(tb redistest.TB) {
			v.Server = redistest.Start(tb, "--dir", dir, "--appendonly", "yes", "--appendfsync", "always")
		})
		v.client = v.Client(tb)
		all = append(all, v)
	}
	return all, nil
}

func (v *voter) kill() {
	v.Kill()
	v.died = monotonic()
}

// restart brings it back with what it had.
func (v *voter) restart(tb redistest.TB) { patiently(tb, func(tb redistest.TB) { v.Restart(tb) }) }

// restartEmpty brings it back with nothing, and not before it has been away for long enough: the schedule leaves time for
// that, but a proof that is interrupted, or a step before this one that took long, does not.
func (v *voter) restartEmpty(ctx context.Context, tb redistest.TB, away time.Duration) error {
	retry.Sleep(context.WithoutCancel(ctx), v.died+away-monotonic())
	if err := errors.Join(os.RemoveAll(v.dir), os.Mkdir(v.dir, 0o700)); err != nil {
		return err
	}
	v.restart(tb)
	return nil
}
