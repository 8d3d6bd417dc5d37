package mssqlhandler_test

import (
	"log"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/microsoft/go-mssqldb"

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
