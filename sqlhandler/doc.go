// Package sqlhandler is what lock handlers for SQL databases share: everything but the SQL.
//
// A store is a [Dialect], which is its statements, the meaning of its errors and the limits of its columns, and a migration
// that creates its table. [NewBase] makes a [Base] of it, and a handler is a Base with an exported type around it:
//
//	//go:embed sql/grant.sql
//	var grantSQL string
//
//	type Handler struct{ *sqlhandler.Base }
//
//	func New(db *sql.DB) *Handler {
//		return &Handler{sqlhandler.NewBase(db, sqlhandler.Dialect{
//			Name:     "mystorehandler",
//			Table:    `"locks"."claims"`,
//			MaxKey:   loki.MaxKeyLength,
//			MaxToken: 128,
//			Grant: sqlhandler.Statement{
//				Text: sqlhandler.StatementText(grantSQL, false),
//				Args: func(c sqlhandler.Call) []any {
//					return []any{c.Key, c.Token, c.Holder, sqlhandler.Milliseconds(c.Expiry), c.Fence, c.Supersedes}
//				},
//			},
//			// ... Extend, Release, Inspect
//			Judge: judge,
//		})}
//	}
//
// Packages mssqlhandler, and postgreshandler in a module of its own, are built on it. Of this package, their users need
// [Run] and [RunOutcome] alone.
//
// # Promise
//
// The package is public because handlers in modules of their own build against it, each against the version that its
// go.mod names. So within a major version no exported name is removed, no field of [Dialect] becomes required, and no field
// or verdict changes its meaning. Fields, verdicts and columns that a statement may answer are added: use field names in a
// literal, and let a switch over verdicts have a default. What is not exported may change in any release.
//
// # What a statement must be
//
// Each operation is one statement, or one batch, sent in one round trip outside any transaction. It must be right when it is
// sent twice: database/sql, the driver and this package repeat it after a connection broke. It goes by the server's clock:
// an argument is a duration, never a point in time. [Dialect] says what it answers.
//
// The package knows no database, creates no table, does not wait for a lock, and keeps no connection, transaction or session
// setting from one call to the next: whatever else the application does with the same pool is not affected.
package sqlhandler
