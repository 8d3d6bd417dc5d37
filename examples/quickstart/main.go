// Command quickstart shows in a few seconds what loki does, with nothing installed: three workers share one batch job,
// and then Redis goes away.
//
// Every line it prints about a worker has been checked; if one were not true it would say so and exit with 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki/examples/internal/localredis"
)

// expiry is how long the others would have to wait if a worker crashed. The job may run for longer.
const expiry = 1500 * time.Millisecond

func main() {
	redis.SetLogger(silence{}) // that Redis is down is part of the story
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	primary, err := localredis.Start()
	if err != nil {
		return err
	}
	defer primary.Stop()
	db, removeDB, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDB()) }()

	var workers []*worker
	for _, name := range []string{"Anna", "Ben", "Carl"} {
		w, err := newWorker(name, primary.Addr(), db)
		if err != nil {
			return err
		}
		defer func() { _ = w.close(ctx) }()
		workers = append(workers, w)
		if err := w.awaitPrimary(ctx); err != nil { // so that no time in the story is that of a first connection
			return err
		}
	}

	fmt.Println("Anna, Ben and Carl are three instances of a service with a batch job.")
	fmt.Println("Only one at a time may run it. Their locks are in Redis, the primary")
	fmt.Printf("store, and in SQL, the secondary. A lock ends after %v unless renewed.\n", expiry)
	s := &story{out: os.Stdout, start: time.Now()}

	s.title("All three start the job")
	err = s.round(ctx, workers, "primary", func(jobCtx context.Context, w *worker) error {
		return s.outage(ctx, jobCtx, w, workers, primary)
	})
	if err != nil {
		return err
	}

	s.title("Redis is still down, and all three start the job again")
	if err := s.round(ctx, workers, "secondary", shortJob); err != nil {
		return err
	}

	s.title("Redis is back, and all three start the job again")
	if err := primary.Restart(); err != nil {
		return err
	}
	for _, w := range workers {
		if err := w.awaitPrimary(ctx); err != nil {
			return err
		}
	}
	if err := s.round(ctx, workers, "primary", shortJob); err != nil {
		return err
	}

	s.title("The workers stop")
	for _, w := range workers {
		if err := w.close(ctx); err != nil {
			return err
		}
	}
	return s.nothingLeft(ctx, primary, db)
}

// outage is the first job: Redis goes away while it runs. jobCtx is the job's; ctx that of everybody else.
func (s *story) outage(ctx, jobCtx context.Context, w *worker, workers []*worker, primary *localredis.Server) error {
	if err := work(jobCtx, 300*time.Millisecond); err != nil {
		return err
	}
	s.tell("Redis", "goes down in the middle of the job")
	primary.Close()
	down := time.Now()

	if err := w.awaitRenewal(jobCtx, "secondary"); err != nil {
		return err
	}
	s.tell(w.name, "still holds the lock: the secondary has renewed it")
	if err := work(jobCtx, time.Until(down.Add(expiry*5/4))); err != nil {
		return err
	}
	other := workers[0]
	if other == w {
		other = workers[1]
	}
	t := other.try(ctx, func(context.Context) error { return nil })
	if err := t.wasSkippedFor(w); err != nil {
		return err
	}
	s.tell(other.name, "tries again and skips: %s is on it, says the secondary", t.holder())
	if jobCtx.Err() != nil {
		return fmt.Errorf("the job was interrupted: %w", context.Cause(jobCtx))
	}
	s.tell(w.name, "comes to the end of the job, %.1fs after Redis went down: it was not interrupted", time.Since(down).Seconds())
	return nil
}

func shortJob(ctx context.Context, _ *worker) error { return work(ctx, 200*time.Millisecond) }

// work takes d, unless the lock is lost first.
func work(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
