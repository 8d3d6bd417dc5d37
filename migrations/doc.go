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
// LokiNet goes on working beside it: it inserts its two columns, and deletes by key. To LokiNet, too, keys that differ
// in case are then different locks. A down migration refuses, with a sentence, while a row does not fit the older form.
//
// It does not run by itself: no handler changes a schema.
package migrations
