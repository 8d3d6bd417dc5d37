// Package sqlhandler is what lock handlers for SQL databases have in common: everything but the SQL.
//
// A store is a [Dialect], which is its statements, what its errors mean and what its columns can hold, and a migration that
// makes its table. [New] turns it into a handler:
//
//	//go:embed sql/grant.sql
//	var grantSQL string
//
//	func New(db *sql.DB) *sqlhandler.Handler {
//		return sqlhandler.New(db, sqlhandler.Dialect{
//			Name:     "mystorehandler",
//			Table:    `"locks"."claims"`,
//			MaxKey:   loki.MaxKeyLength,
//			MaxToken: 128,
//			Grant: sqlhandler.Statement{
//				Text: sqlhandler.Text(grantSQL, false),
//				Args: func(c sqlhandler.Call) []any {
//					return []any{c.Key, c.Token, c.Holder, sqlhandler.Milliseconds(c.Expiry), c.Fence, c.Supersedes}
//				},
//			},
//			// ... Extend, Release, Inspect
//			Judge: judge,
//		})
//	}
//
// Packages mssqlhandler, and postgreshandler in a module of its own, are made of it. Users of those need to know of this
// package what [Run] says.
//
// # What statements have to be
//
// Each operation is one statement, or one batch of them, sent once in one round trip, outside any transaction. It is right
// when it is sent twice, since database/sql, the driver and this package do that where a connection broke. It goes by the
// server's clock: an argument is a length of time, never a point in it. What it answers is told at [Dialect].
//
// It does not know any database, make a table, wait for a lock, log, or keep a connection, a transaction or a setting from
// one call to the next: whatever else the application does with the same pool is not affected.
package sqlhandler
