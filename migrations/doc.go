// Package migrations makes the table that package mssqlhandler keeps locks in, or takes over the one of the .NET library
// LokiNet with the rows that it has.
//
// [Apply] does it from Go. The SQL files are numbered as golang-migrate wants them, and can be used with it as they are:
//
//	source, err := iofs.New(migrations.Files, ".")
//	m, err := migrate.NewWithSourceInstance("iofs", source, "sqlserver://...")
//
// 000001 is the table as LokiNet documents it, 000002 makes it
//
//	CREATE TABLE [dbo].[LokiLockings](
//		[ServiceKey]   [nvarchar](400) COLLATE Latin1_General_BIN2 NOT NULL,
//		[CreationDate] [datetime] NOT NULL,
//		[Token]        [nvarchar](128) COLLATE Latin1_General_BIN2 NULL,
//		[Holder]       [nvarchar](max) NULL,
//		[ExpiresAt]    [datetime2](7) NULL,
//		[Fence]        [bigint] NULL,
//		CONSTRAINT [PK_LokiLockings] PRIMARY KEY CLUSTERED ([ServiceKey] ASC))
//
// 000003 makes a second table, for handlers that keep a history: [Apply] and [Script] have it with [WithHistory] only, and
// handlers without a history never name it, nor the two columns
// that it adds to the first, RunEndedAt and RunEnding. golang-migrate makes it with the others, which does no harm.
//
// LokiNet goes on working beside it: it inserts its two columns, and deletes by key. To LokiNet, too, keys that differ
// in case are then different locks. A down migration refuses, with a sentence, while a row does not fit the older form.
//
// It does not run by itself: no handler changes a schema.
package migrations
