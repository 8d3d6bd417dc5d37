// Command batchjob is a batch job as a service would run it: on every machine, and at any time on one of them.
//
// The primary store is the Redis at REDIS_URL. The secondary, if there is to be one, is the SQL Server at MSSQL_DSN,
// whose table the flag -migrate makes.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/microsoft/go-mssqldb" // the driver "sqlserver"
	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
)

// expiry is how long the others wait if this process crashes. The job may take longer.
const expiry = 10 * time.Second

func main() {
	duration := flag.Duration("for", 15*time.Second, "how long the job takes")
	migrate := flag.Bool("migrate", false, "make the table in SQL Server first; for a login that may")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *duration, *migrate)
	stop()
	if err != nil {
		slog.Error("the batch job failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, duration time.Duration, migrate bool) (err error) {
	redisURL := os.Getenv("REDIS_URL")
	if redisURL == "" {
		return errors.New("REDIS_URL is not set: name a Redis server, for instance REDIS_URL=redis://localhost:6379")
	}
	redisOptions, err := redis.ParseURL(redisURL)
	if err != nil { // it may repeat the password
		return errors.New("REDIS_URL is not of the form redis://user:password@host:6379/0, with what is special in the password percent-encoded")
	}
	rdb := redis.NewClient(redisOptions)
	defer func() { err = errors.Join(err, rdb.Close()) }()

	builder := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(redishandler.New(rdb)).
		SetPrimaryTimeout(2 * time.Second).SetSecondaryTimeout(5 * time.Second). // a batch job is in no hurry
		SetObserver(loki.LogEvents(slog.Default()))                              // what is normal is at debug level

	if dsn := os.Getenv("MSSQL_DSN"); dsn != "" {
		db, err := sqlx.Open("sqlserver", dsn)
		if err != nil {
			return err
		}
		defer db.Close()
		if migrate {
			if err := migrations.Apply(ctx, db.DB); err != nil {
				return err
			}
		}
		// A warning, and no reason not to start: while Redis is well the job runs without SQL Server.
		if err := mssqlhandler.Check(ctx, db); err != nil {
			slog.Warn("SQL Server would be no help if Redis failed", "err", err)
		}
		builder.SetSecondaryLockHandler(mssqlhandler.New(db))
	}

	locker, err := builder.Build()
	if err != nil {
		return err
	}
	// Before the clients are closed, and also when the signal has come.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, locker.Close(ctx))
	}()

	err = locker.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
		return closeTheDay(ctx, duration)
	})
	if errors.Is(err, loki.ErrBusy) {
		slog.Info("skipped", "because", err)
	}
	return loki.IgnoreBusy(err)
}

// closeTheDay is the job. ctx ends when the signal comes, and when the lock is lost.
func closeTheDay(ctx context.Context, duration time.Duration) error {
	lease, _ := loki.LeaseFromContext(ctx)
	slog.Info("the job runs", "pid", os.Getpid(), "fence", lease.Fence())
	select {
	case <-time.After(duration):
		slog.Info("the job is done")
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // nothing half done is left behind, whoever comes next
	}
}
