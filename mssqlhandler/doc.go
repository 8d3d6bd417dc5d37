// Package mssqlhandler keeps locks in a table of SQL Server 2016 to 2025 or Azure SQL.
//
//	db, err := sqlx.Open("sqlserver", "sqlserver://user:password@host?database=app")
//	...
//	err = migrations.Apply(ctx, db.DB) // once per deployment, by a login that may change the schema
//	...
//	locker, err := loki.NewBuilder().
//		SetServiceKey("invoice-batch").
//		SetPrimaryLockHandler(redishandler.New(rdb)).
//		SetSecondaryLockHandler(mssqlhandler.New(db)).
//		Build()
//
// The table is the one of the .NET library LokiNet, [dbo].[LokiLockings], with a few columns more; package migrations
// makes it, or takes over the one that is there. At run time the login needs SELECT, INSERT, UPDATE and DELETE on it and
// nothing else; [Check] says at start-up whether all is as it should be. docs/sqlserver.md in the repository has more for
// those who run the database.
//
// Every operation is one round trip of statements that commit by themselves. No transaction, session setting or
// connection is kept: a claim outlives the connection that recorded it, and whatever the application does with
// the same pool is not affected; how large that should be is in docs/operations.md. Expiry is judged by the server's clock; no time of the client's
// is ever sent.
//
// Keys are exact: case, accents and blanks tell them apart. SQL Server compares without the blanks at the end, so that a key that
// ends in one is refused; the Locker never makes one.
//
// # Beside LokiNet
//
// A row that LokiNet wrote has no token. It is busy, held by "LokiNet", until LokiNet deletes it or it is older than
// [WithLokiNetExpiry] allows. LokiNet in turn takes every row for a lock as long as it stands in the table: also one
// whose claim has expired, until a Locker has acquired and released that key, or it is swept. LokiNet releases by key alone:
// a job whose row was replaced because it was too old deletes the row of the next holder, which loses its lock at the next
// renewal.
//
// # What is left, and for how long
//
// A release deletes the row. Rows of holders that died, whose keys are not used again, are swept: each release looks at
// the next few rows of the table and deletes those that expired more than a minute ago. With [WithHistory] each claim that
// ends leaves a row in a second table, until that has been kept for long enough.
//
// # Fencing tokens
//
// A fencing token is the largest of the last one of the row plus one, the floor that the claim brings, and the server's clock
// in microseconds since 1970. A release deletes the row, and as a rule the clock alone makes the next one larger. One
// that the clock has not passed by then is kept in one row for the whole table, with the key "fence" and a control
// character (0x1F), already expired: because the floor came from a store whose clock is ahead, by a day at most, or
// because the clock advances in steps. So fencing tokens grow as long as the server's clock does not step back.
//
// It does not wait for a lock, log, create its table, or know of another handler.
package mssqlhandler
