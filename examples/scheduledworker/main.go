// Command scheduledworker is a cron job on several instances, of which each occurrence runs once.
//
// The instances' clocks differ, so they do not start at the same moment: a job that is short would be over, and its
// lock free again, when the last one starts. [loki.WithMinHold] keeps the lock for longer than that. Here all instances
// are one process, and the job is left after a few occurrences; with the flag -min-hold 0 it runs too often.
//
// The store is the Redis at REDIS_URL, or one inside the process if that is not set.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/lokilock/loki/examples/internal/localredis"
	"github.com/redis/go-redis/v9"
)

const (
	schedule    = "*/2 * * * * *" // with seconds: every other one
	period      = 2 * time.Second
	occurrences = 2                // to be seen before the program ends
	expiry      = 10 * time.Second // how long the others wait if one crashes in the middle of the job
)

// clocks are how far each instance's clock is behind.
var clocks = []time.Duration{0, 150 * time.Millisecond, 400 * time.Millisecond}

func main() {
	// Longer than clocks differ and starts are delayed, shorter than what is left of the period.
	minHold := flag.Duration("min-hold", 1200*time.Millisecond, "how long a lock is kept at least")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *minHold)
	stop()
	if err != nil {
		slog.Error("the scheduled worker failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, minHold time.Duration) (err error) {
	rdb, disconnect, err := connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disconnect()) }()

	fmt.Printf("%d instances with the schedule %q. Their clocks differ by %v, and a lock is kept for at least %v.\n",
		len(clocks), schedule, clocks[len(clocks)-1], minHold)
	tally := newTally(len(clocks))
	for n, behind := range clocks {
		i, err := newInstance(n+1, rdb)
		if err != nil {
			return err
		}
		if err := i.start(ctx, behind, minHold, tally); err != nil {
			return err
		}
		defer i.stop()
	}
	return tally.await(ctx, occurrences)
}

// connect returns a client of the Redis at REDIS_URL, or of one inside the process.
func connect(ctx context.Context) (rdb *redis.Client, disconnect func() error, err error) {
	url, stop := os.Getenv("REDIS_URL"), func() {}
	if url == "" {
		server, err := localredis.Start()
		if err != nil {
			return nil, nil, err
		}
		url, stop = "redis://"+server.Addr(), server.Stop
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, errors.New("REDIS_URL is not of the form redis://user:password@host:6379/0, with what is special in the password percent-encoded") // err may repeat the password
	}
	rdb = redis.NewClient(options)
	disconnect = func() error {
		defer stop()
		return rdb.Close()
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("no Redis at %s: %w", options.Addr, err), disconnect())
	}
	return rdb, disconnect, nil
}
