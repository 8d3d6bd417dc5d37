package lokitest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

// The test of a handler's own package.
func ExampleRun() {
	_ = func(t *testing.T) { // TestConformance
		store := memhandler.New() // yours
		lokitest.Run(t, func(t *testing.T) loki.LockHandler { return store })
	}
}

// A tool that looks whether a store keeps its promises.
func ExampleCheck() {
	fmt.Println(lokitest.Check(context.Background(), memhandler.New()))
	// Output: <nil>
}

// The primary loses its network; the secondary decides.
func ExampleFaults() {
	primary := lokitest.NewFaults(memhandler.New())
	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(primary).
		SetSecondaryLockHandler(memhandler.New()).
		Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close(context.Background())

	down := loki.Unavailable(errors.New("connection refused"))
	primary.Set(lokitest.OpLock, lokitest.Fault{Err: down})

	var out loki.Outcome
	err = locker.ExecuteWithinLock(context.Background(), time.Minute, func(context.Context) error { return nil }, loki.WithOutcome(&out))
	fmt.Println(out.Store, err)
	// Output: secondary <nil>
}

// A reply is lost after the store has recorded the claim: nobody knows, and everybody else is locked out.
func ExampleFaults_Next() {
	store := lokitest.NewFaults(memhandler.New())
	store.Next(lokitest.OpLock, lokitest.Fault{Err: errors.New("connection reset"), LostReply: true})

	ctx := context.Background()
	fmt.Println(store.Lock(ctx, loki.Claim{Key: "k", Token: "a", Expiry: time.Minute}))
	fmt.Println(store.Lock(ctx, loki.Claim{Key: "k", Token: "b", Expiry: time.Minute}))
	fmt.Println(store.Lock(ctx, loki.Claim{Key: "k", Token: "a", Expiry: time.Minute}))
	// Output:
	// false connection reset
	// false <nil>
	// true <nil>
}

// The releases of one claim fail, however many others there are at the same time.
func ExampleFaults_Decide() {
	store := lokitest.NewFaults(memhandler.New())
	store.Decide(func(op lokitest.Op, c loki.Claim) lokitest.Fault {
		if op == lokitest.OpRelease && c.Token == "b" {
			return lokitest.Fault{Err: errors.New("timed out")}
		}
		return lokitest.Fault{}
	})
	for _, token := range []string{"a", "b", "c"} {
		fmt.Println(token, store.Release(context.Background(), loki.Claim{Key: "k", Token: token}))
	}
	// Output:
	// a <nil>
	// b timed out
	// c <nil>
}

func ExampleRecorder() {
	store := lokitest.NewRecorder(memhandler.New())
	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(store).Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locker.ExecuteWithinLock(context.Background(), time.Minute, func(context.Context) error { return nil })
	fmt.Println(err, locker.Close(context.Background()))

	for _, c := range store.Calls() {
		fmt.Println(c.Op, c.Claim.Key, c.Held, c.Err)
	}
	// Output:
	// <nil> <nil>
	// lock invoice-batch true <nil>
	// release invoice-batch true <nil>
}
