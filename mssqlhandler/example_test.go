package mssqlhandler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/mssqlhandler"
)

func ExampleNew() {
	db, err := sqlx.Open("sqlserver", "sqlserver://app:secret@localhost?database=jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(memhandler.New()).
		SetSecondaryLockHandler(mssqlhandler.New(db)).
		Build()
	if err != nil {
		log.Fatal(err)
	}
	_ = locker
}

func ExampleOpen() {
	handler, err := mssqlhandler.Open("sqlserver://app:secret@localhost?database=jobs",
		mssqlhandler.WithSchema("locks"),
		mssqlhandler.WithLokiNetExpiry(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer handler.Close()
}

func ExampleCheck() {
	db, err := sqlx.Open("sqlserver", "sqlserver://app:secret@localhost?database=jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = mssqlhandler.Check(ctx, db, mssqlhandler.WithHistory(30*24*time.Hour)) // the options of New
	switch {
	case loki.IsUnavailable(err):
		log.Print(err) // it may be back when it is needed
	case err != nil:
		log.Fatal(err) // it says what to run
	}
}

func ExampleWithHistory() {
	handler, err := mssqlhandler.Open("sqlserver://app:secret@localhost?database=jobs",
		mssqlhandler.WithHistory(30*24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	defer handler.Close()

	runs, err := handler.History(context.Background(), "invoice-batch", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, run := range runs {
		fmt.Println(run.Since, run.Until, run.Outcome, run.Holder)
	}
}
