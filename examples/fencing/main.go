// Command fencing protects data from a holder that has lost its lock without noticing.
//
// A process can be stopped for longer than its lease: by a debugger, a laptop's lid, a virtual machine that is moved.
// When it goes on, another holds the lock, and nothing in the lock's store can keep the first from writing. What can is
// the data's own store, if every write carries the lease's fence: a number that grows from holder to holder.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	_ "modernc.org/sqlite" // the database of the guarded data

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

const (
	expiry = 300 * time.Millisecond

	createTable = `CREATE TABLE balance (account TEXT PRIMARY KEY, amount INTEGER NOT NULL, fence INTEGER NOT NULL)`
	openAccount = `INSERT INTO balance VALUES ('cash', 0, 0)`

	// guardedUpdate changes nothing if a later holder has written already. The same fence may write again: one lease,
	// many writes.
	guardedUpdate = `UPDATE balance SET amount = ?, fence = ? WHERE account = 'cash' AND fence <= ?`
)

// errFenced is what a writer gets whose lock is another's by now.
var errFenced = errors.New("a later holder of the lock has written: nothing was changed")

// write sets the balance in the name of the lease that ctx belongs to.
func write(ctx context.Context, db *sql.DB, amount int) error {
	lease, ok := loki.LeaseFromContext(ctx)
	if !ok {
		return errors.New("write outside of a lock")
	}
	// Not ctx: this is the writer that has not noticed that ctx has ended.
	result, err := db.ExecContext(context.WithoutCancel(ctx), guardedUpdate, amount, lease.Fence(), lease.Fence())
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	return errFenced
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	for _, statement := range []string{createTable, openAccount} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	store := memhandler.New() // any store that issues fences: Redis and SQL Server do
	first, err := loki.NewBuilder().SetServiceKey("accounts").SetPrimaryLockHandler(store).SetHolder("the first").Build()
	if err != nil {
		return err
	}
	second, err := loki.NewBuilder().SetServiceKey("accounts").SetPrimaryLockHandler(store).SetHolder("the second").Build()
	if err != nil {
		return err
	}

	// Without renewal, as if the process were stopped as a whole.
	err = first.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
		if err := write(ctx, db, 100); err != nil {
			return err
		}
		fmt.Println("the first holder writes 100, and is stopped for too long")
		<-ctx.Done()
		if err := second.ExecuteWithinLock(context.WithoutCancel(ctx), expiry, func(ctx context.Context) error {
			return write(ctx, db, 250)
		}, loki.WithWait(10*expiry)); err != nil {
			return err
		}
		fmt.Println("the second holder writes 250")
		return write(ctx, db, 130)
	}, loki.WithoutRenewal())

	if !errors.Is(err, errFenced) || !errors.Is(err, loki.ErrLockLost) {
		return fmt.Errorf("the late write should have been refused, and the loss told: %w", err)
	}
	fmt.Println("the first goes on and writes 130:", errFenced)
	var amount int
	if err := db.QueryRowContext(ctx, `SELECT amount FROM balance`).Scan(&amount); err != nil {
		return err
	}
	if amount != 250 {
		return fmt.Errorf("the balance is %d instead of 250", amount)
	}
	fmt.Println("the balance is 250")
	return nil
}
