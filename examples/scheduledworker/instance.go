package main

// This file is an instance: a scheduler and a Locker of its own.

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

type instance struct {
	name   string
	locker *loki.Locker
	jobs   *cron.Cron
}

func newInstance(n int, rdb *redis.Client) (*instance, error) {
	locker, err := loki.NewBuilder().
		SetServiceKey("report").
		SetPrimaryLockHandler(redishandler.New(rdb)).
		SetObserver(loki.LogEvents(slog.Default())).
		Build()
	return &instance{name: fmt.Sprintf("instance %d", n), locker: locker, jobs: cron.New()}, err
}

// start has the job run as the schedule says, by a clock that is behind.
func (i *instance) start(ctx context.Context, behind, minHold time.Duration, tally *tally) error {
	times, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(schedule)
	if err != nil {
		return err
	}
	i.jobs.Schedule(late{times, behind}, cron.FuncJob(func() {
		occurrence := time.Now().Add(-behind).Truncate(period)
		var outcome loki.Outcome
		err := i.locker.ExecuteWithinLock(ctx, expiry, makeReport, loki.WithMinHold(minHold), loki.WithOutcome(&outcome))
		tally.add(occurrence, i.name, outcome.Ran, loki.IgnoreBusy(err))
	}))
	i.jobs.Start()
	return nil
}

// stop waits for a job that runs, and for its lock to be given back.
func (i *instance) stop() {
	<-i.jobs.Stop().Done()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := i.locker.Close(ctx); err != nil {
		slog.Warn("a lock is left to expire", "instance", i.name, "err", err)
	}
}

// makeReport is the job. It takes less time than the clocks differ by.
func makeReport(context.Context) error {
	time.Sleep(20 * time.Millisecond)
	return nil
}

// late is a schedule on a machine whose clock is behind.
type late struct {
	cron.Schedule
	behind time.Duration
}

func (l late) Next(t time.Time) time.Time { return l.Schedule.Next(t.Add(-l.behind)).Add(l.behind) }
