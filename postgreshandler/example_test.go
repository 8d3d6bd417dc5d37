package postgreshandler_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/postgreshandler"
)

func ExampleNew() {
	db, err := sql.Open("pgx", "postgres://app:secret@localhost/jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	locker, err := loki.NewBuilder().
		SetServiceKey("invoice-batch").
		SetPrimaryLockHandler(memhandler.New()).
		SetSecondaryLockHandler(postgreshandler.New(db)).
		Build()
	if err != nil {
		log.Fatal(err)
	}
	_ = locker
}

func ExampleOpen() {
	handler, err := postgreshandler.Open("host=db1,db2 user=app password=secret dbname=jobs target_session_attrs=read-write",
		postgreshandler.WithSchema("locks"),
		postgreshandler.WithHistory(30*24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = handler.Close() }()

	locker, err := loki.NewBuilder().SetServiceKey("invoice-batch").SetPrimaryLockHandler(handler).Build()
	if err != nil {
		log.Fatal(err)
	}
	_ = locker
}

// Behind PgBouncer, which lends a connection to others after each transaction: nothing is prepared, and those who wait
// listen past it.
func ExampleWithListenDSN() {
	handler, err := postgreshandler.Open("postgres://app:secret@pgbouncer:6432/jobs?default_query_exec_mode=exec",
		postgreshandler.WithListenDSN("postgres://app:secret@db:5432/jobs"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = handler.Close() }()
}

func ExampleCheck() {
	db, err := sql.Open("pgx", "postgres://app:secret@localhost/jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	err = postgreshandler.Check(context.Background(), db)
	if loki.IsUnavailable(err) {
		log.Print("the database is down: start all the same, the primary decides")
	} else if err != nil {
		log.Fatal(err)
	}
}

func ExampleHandler_History() {
	handler, err := postgreshandler.Open("postgres://app:secret@localhost/jobs", postgreshandler.WithHistory(30*24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = handler.Close() }()

	runs, err := handler.History(context.Background(), "invoice-batch", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, run := range runs {
		fmt.Println(run.Since, run.Until, run.Holder, run.Outcome)
	}
}
