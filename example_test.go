package loki_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
	"github.com/redis/go-redis/v9"
)

func closeTheDay(context.Context) error { return nil }

// The whole of it, with Redis and SQL Server.
func Example() {
	run := func(ctx context.Context, rdb *redis.Client, db *sqlx.DB) error {
		locker, err := loki.NewBuilder().
			SetServiceKey("invoice-batch").
			SetPrimaryLockHandler(redishandler.New(rdb)).  // any go-redis client
			SetSecondaryLockHandler(mssqlhandler.New(db)). // a *sqlx.DB; optional
			Build()
		if err != nil {
			return err // every mistake at once
		}
		defer locker.Close(context.WithoutCancel(ctx)) // waits for closures, and for the first attempt of each release

		err = locker.ExecuteWithinLock(ctx, 30*time.Second, func(ctx context.Context) error {
			return closeTheDay(ctx) // ctx ends, with a cause, the moment the lock is lost
		})
		if errors.Is(err, loki.ErrBusy) {
			fmt.Println("skipped:", err) // another instance is on it
		}
		return loki.IgnoreBusy(err)
	}
	_ = run
}

// What SQL Server needs, once for each deployment.
func Example_sqlServer() {
	setUp := func(ctx context.Context, db *sqlx.DB) (err error) {
		err = migrations.Apply(ctx, db.DB)
		return err
	}
	_ = setUp
}

// newExampleLocker is a Locker on a store in memory.
func newExampleLocker(store *memhandler.Handler) *loki.Locker {
	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(store).Build()
	if err != nil {
		panic(err)
	}
	return locker
}

func ExampleLocker_ExecuteWithinLock() {
	store := memhandler.New()
	here, elsewhere := newExampleLocker(store), newExampleLocker(store) // as on two machines

	err := here.ExecuteWithinLock(context.Background(), 30*time.Second, func(ctx context.Context) error {
		err := elsewhere.ExecuteWithinLock(ctx, 30*time.Second, closeTheDay)
		fmt.Println("there:", errors.Is(err, loki.ErrBusy))
		return nil
	})
	fmt.Println("here:", err)
	// Output:
	// there: true
	// here: <nil>
}

func ExampleExecute() {
	locker := newExampleLocker(memhandler.New())
	invoices, err := loki.Execute(context.Background(), locker, 30*time.Second, func(context.Context) (int, error) {
		return 42, nil
	})
	fmt.Println(invoices, err)
	// Output: 42 <nil>
}

func ExampleLocker_Acquire() {
	locker := newExampleLocker(memhandler.New())
	lease, err := locker.Acquire(context.Background(), 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = closeTheDay(lease.Context()) // ends when the lock is lost
	err = errors.Join(err, lease.Release(context.Background()))
	fmt.Println(lease.Key(), err)
	// Output: invoice-batch <nil>
}

func ExampleLeaseFromContext() {
	locker := newExampleLocker(memhandler.New())
	_ = locker.ExecuteWithinLock(context.Background(), 30*time.Second, func(ctx context.Context) error {
		lease, _ := loki.LeaseFromContext(ctx)
		// UPDATE batch SET ..., fence = @fence WHERE fence <= @fence
		fmt.Println(lease.Key(), lease.Fence() > 0)
		return nil
	})
	// Output: invoice-batch true
}

func ExampleLocker_Close() {
	locker := newExampleLocker(memhandler.New())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(locker.Close(ctx)) // no more than ten seconds for what is running
	fmt.Println(locker.ExecuteWithinLock(ctx, time.Second, closeTheDay))
	// Output:
	// <nil>
	// loki: the Locker is closed
}

func ExampleIgnoreBusy() {
	store := memhandler.New()
	lease, _ := newExampleLocker(store).Acquire(context.Background(), time.Minute)
	err := newExampleLocker(store).ExecuteWithinLock(context.Background(), time.Minute, closeTheDay)
	fmt.Println(loki.IgnoreBusy(err))
	_ = lease.Release(context.Background())
	// Output: <nil>
}

func ExampleWithResource() {
	locker := newExampleLocker(memhandler.New())
	_ = locker.ExecuteWithinLock(context.Background(), time.Minute, func(ctx context.Context) error {
		return locker.ExecuteWithinLock(ctx, time.Minute, func(context.Context) error {
			fmt.Println("two different locks")
			return nil
		}, loki.WithResource("customer/7"))
	})
	// Output: two different locks
}

func ExampleWithWait() {
	store := memhandler.New()
	lease, _ := newExampleLocker(store).Acquire(context.Background(), time.Minute)
	time.AfterFunc(10*time.Millisecond, func() { _ = lease.Release(context.Background()) })

	err := newExampleLocker(store).ExecuteWithinLock(context.Background(), time.Minute, closeTheDay, loki.WithWait(10*time.Second))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleWithMinHold() {
	store := memhandler.New()
	ran := 0
	for range 3 { // three instances whose clocks are some milliseconds apart
		_ = newExampleLocker(store).ExecuteWithinLock(context.Background(), time.Minute, func(context.Context) error {
			ran++
			return nil
		}, loki.WithMinHold(5*time.Second))
	}
	fmt.Println(ran)
	// Output: 1
}

func ExampleWithOccurrence() {
	store := memhandler.New()
	for range 3 {
		err := newExampleLocker(store).ExecuteWithinLock(context.Background(), time.Minute, closeTheDay,
			loki.WithOccurrence("2026-11-30", 48*time.Hour))
		fmt.Println(errors.Is(err, loki.ErrDone))
	}
	// Output:
	// false
	// true
	// true
}

// One run a day by the wall clock of Berlin, in whatever zone an instance thinks it is.
func ExampleOccurrenceID() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	scheduled := time.Date(2026, 11, 30, 0, 30, 0, 0, berlin)
	for _, t := range []time.Time{scheduled, scheduled.UTC(), scheduled.In(time.FixedZone("", -5*60*60))} {
		fmt.Println(loki.OccurrenceID(t, 24*time.Hour, berlin))
	}
	fmt.Println(loki.OccurrenceID(scheduled, 7*24*time.Hour, berlin)) // the week
	fmt.Println(loki.OccurrenceID(scheduled, 15*time.Minute, nil))    // an interval

	err = newExampleLocker(memhandler.New()).ExecuteWithinLock(context.Background(), time.Minute, closeTheDay,
		loki.WithOccurrence(loki.OccurrenceID(scheduled, 24*time.Hour, berlin), 48*time.Hour))
	fmt.Println(err)
	// Output:
	// 2026-11-30
	// 2026-11-30
	// 2026-11-30
	// 2026-11-30
	// 2026-11-29T23:30:00Z
	// <nil>
}

func ExampleWithoutRenewal() {
	locker := newExampleLocker(memhandler.New())
	err := locker.ExecuteWithinLock(context.Background(), 20*time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}, loki.WithoutRenewal())
	fmt.Println(errors.Is(err, loki.ErrLockLost), errors.Is(err, loki.ErrExpired))
	// Output: true true
}

func ExampleWithOutcome() {
	locker := newExampleLocker(memhandler.New())
	var out loki.Outcome
	_ = locker.ExecuteWithinLock(context.Background(), time.Minute, closeTheDay, loki.WithOutcome(&out))
	fmt.Println(out.Ran, out.Key, out.Store)
	// Output: true invoice-batch primary
}

func ExampleNew() {
	_, err := loki.New(loki.Config{ServiceKey: " invoice-batch", Mirror: loki.MirrorSync})
	fmt.Println(err)
	// Output:
	// loki: the service key " invoice-batch" begins or ends with a blank: remove it
	// loki: the primary lock handler is missing: set one with SetPrimaryLockHandler or Config.Primary
	// loki: MirrorSync needs a secondary lock handler: set one, or leave the mirror mode at its default
}

func ExampleLogEvents() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" {
			return slog.Attr{}
		}
		return a
	}}))
	locker, _ := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(memhandler.New()).
		SetObserver(loki.LogEvents(logger)).Build()
	_ = locker.ExecuteWithinLock(context.Background(), time.Minute, closeTheDay)
	_ = locker.Close(context.Background()) // waits for the observer, too
	// Output:
	// level=DEBUG msg="loki: acquired" key=invoice-batch store=primary op=lock
	// level=DEBUG msg="loki: released" key=invoice-batch store=primary op=release
}

func ExampleUnavailable() {
	connect := errors.New("shop.db: connection refused")
	err := loki.Unavailable(connect)
	fmt.Println(err, errors.Is(err, connect), loki.IsUnavailable(err), loki.IsUnavailable(connect))
	// Output: shop.db: connection refused true true false
}

func ExampleMargin() {
	fmt.Println(loki.Margin(30*time.Second), loki.Margin(loki.MinExpiry))
	// Output: 1.5s 1ms
}

func ExampleBuilder_Build() {
	_, err := loki.NewBuilder().SetServiceKey(strings.Repeat("x", 500)).SetPrimaryLockHandler(memhandler.New()).Build()
	fmt.Println(strings.Contains(err.Error(), "500 UTF-16 units, at most 400 fit in every store"))
	// Output: true
}
