package memhandler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

// A unit test gives its code a Locker without a server, and sees in the end that nothing was left locked.
func Example() {
	store := memhandler.New()
	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(store).Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	err = locker.ExecuteWithinLock(context.Background(), time.Minute, func(context.Context) error {
		fmt.Println("held:", store.HeldKeys())
		return nil
	})
	fmt.Println(err, locker.Close(context.Background()))
	fmt.Println("held:", store.HeldKeys())
	// Output:
	// held: [invoice-batch]
	// <nil> <nil>
	// held: []
}
