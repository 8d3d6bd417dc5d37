package loki_test

import (
	"context"
	"errors"
	"expvar"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
)

// The pages show these lines. TestDocs_CodeCompiles finds them here; nothing calls them.

var _ = func(ctx context.Context, builder *loki.Builder) error {
	db := sqlx.MustOpen("sqlserver", "sqlserver://user:password@host?database=jobs")
	err := migrations.Apply(ctx, db.DB) // creates the table, once for each deployment
	builder.SetSecondaryLockHandler(mssqlhandler.New(db))
	return err
}

var _ = func(builder *loki.Builder, logger *slog.Logger, counters *expvar.Map) {
	logEvents := loki.LogEvents(logger)
	builder.SetObserver(func(ctx context.Context, e loki.Event) {
		logEvents(ctx, e)
		counters.Add(string(e.Kind), 1) // expvar, or any other metrics library
	})
}

var _ = func(ctx context.Context, handler *redishandler.Handler) (any, bool, error) {
	holder, held, err := handler.Inspect(ctx, "invoice-batch")
	return holder, held, err
}

var _ = func(db *sqlx.DB) *mssqlhandler.Handler {
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	handler := mssqlhandler.New(db, mssqlhandler.WithHistory(30*24*time.Hour))
	return handler
}

var _ = func(ctx context.Context, locker *loki.Locker) (err error) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	err = locker.Close(closing)
	return err
}

var _ = func(locker *loki.Locker) (error, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	stopsOnSignal := locker.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay)
	finishes := locker.ExecuteWithinLock(context.WithoutCancel(ctx), 30*time.Second, closeTheDay)
	return stopsOnSignal, finishes
}

var _ = func(ctx context.Context, locker *loki.Locker, scheduled time.Time) error {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		return err
	}
	id := loki.OccurrenceID(scheduled, 24*time.Hour, berlin) // scheduled: the time for which the scheduler planned this run
	err = locker.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay, loki.WithOccurrence(id, 48*time.Hour))
	return loki.IgnoreBusy(err) // ErrDone is a kind of ErrBusy
}

var _ = func(ctx context.Context, locker *loki.Locker, id string) (err error) {
	err = locker.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay,
		loki.WithOccurrence(id, 48*time.Hour), loki.WithWait(10*time.Minute))
	return err
}

var _ = func(ctx context.Context, locker *loki.Locker, scheduler interface {
	AddFunc(spec string, cmd func()) (int, error)
}) (err error) {
	job := func() {
		err := locker.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay, loki.WithMinHold(5*time.Second))
		if loki.IgnoreBusy(err) != nil {
			slog.Error("the job failed", "err", err)
		}
	}
	_, err = scheduler.AddFunc("30 2 * * *", job) // github.com/robfig/cron
	return err
}

var _ = func(ctx context.Context, locker *loki.Locker, jobName string) (*loki.Lease, error) {
	lease, err := locker.Acquire(context.WithoutCancel(ctx), 30*time.Second, loki.WithResource(jobName))
	return lease, err
}

var _ = func(rdb *redis.Client) *redishandler.Handler {
	handler := redishandler.New(rdb, redishandler.WithLokiNetKeys())
	return handler
}

var _ = func(locker *loki.Locker) func(context.Context) error {
	task := func(ctx context.Context) error {
		id := loki.OccurrenceID(time.Now(), 15*time.Minute, nil) // a job that runs every 15 minutes
		err := locker.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay, loki.WithOccurrence(id, time.Hour))
		return loki.IgnoreBusy(err)
	}
	return task
}

var _ = func() *redishandler.Handler {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    "locks",
		SentinelAddrs: []string{"10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"},
	})
	handler := redishandler.New(rdb, redishandler.WithReplicaAck(1, 100*time.Millisecond))
	return handler
}

var _ = func() *redis.Ring {
	rdb := redis.NewRing(&redis.RingOptions{
		Addrs:       map[string]string{"a": "10.0.0.1:6379", "b": "10.0.0.2:6379"},
		HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
	})
	return rdb
}

var _ = func(ctx context.Context, rdb *redis.Client) error {
	err := redishandler.Check(ctx, rdb) // with the same options as New
	switch {
	case errors.Is(err, redishandler.ErrAdvice): // locks work
		slog.Warn("Redis works, and could be set up better", "advice", err)
	case err != nil:
		return err // what to do, a line for each problem; lines of advice begin with "redishandler: advice:"
	}
	return nil
}
