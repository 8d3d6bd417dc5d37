// A program of a user who has run go get github.com/lokilock/loki/postgreshandler, and whose database is down.
package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

func main() {
	handler, err := postgreshandler.Open("postgres://app:secret@127.0.0.1:1/jobs") // nobody listens there
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = handler.Close() }()
	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(handler).Build()
	if err != nil {
		log.Fatal(err)
	}
	err = locker.ExecuteWithinLock(context.Background(), 30*time.Second, func(context.Context) error { return nil })
	if !errors.Is(err, loki.ErrUnavailable) {
		log.Fatal(err)
	}
	if err := locker.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
}
