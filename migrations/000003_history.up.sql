-- 000003 up makes the table of the claims that have ended, for handlers with a history. Handlers without one never name
-- it, and the table of locks is not touched.
--
-- A statement that ends a claim moves its row here with OUTPUT INTO, which forbids triggers, foreign keys and checks. What
-- became of it follows from when it would have expired, when it ended and what ended it.
--
-- The primary key is in the order in which rows come and go: new ones at its end, the oldest, which releases remove, at its
-- beginning. The index is for those who ask for one key.
--
-- Re-runnable: both steps look first. Of two instances at once one may be told that something exists (2714, 1913).
IF OBJECT_ID(N'[dbo].[LokiLockingsHistory]', N'U') IS NULL
    CREATE TABLE [dbo].[LokiLockingsHistory](
        [ServiceKey] [nvarchar](400) COLLATE Latin1_General_BIN2 NOT NULL,
        [Token] [nvarchar](128) COLLATE Latin1_General_BIN2 NULL,
        [Holder] [nvarchar](max) NULL,
        [CreationDate] [datetime] NULL,
        [ExpiresAt] [datetime2](7) NULL,
        [Fence] [bigint] NULL,
        [EndedAt] [datetime2](7) NOT NULL,
        [Ending] [varchar](10) NOT NULL,
        [Id] [bigint] IDENTITY NOT NULL,
        [Until] AS CASE WHEN [ExpiresAt] < [EndedAt] THEN [ExpiresAt] ELSE [EndedAt] END,
        [Outcome] AS CASE WHEN [Token] IS NULL OR [ExpiresAt] <= [EndedAt] THEN 'expired' ELSE [Ending] END,
        CONSTRAINT [PK_LokiLockingsHistory] PRIMARY KEY CLUSTERED ([EndedAt], [Id])
    );

IF NOT EXISTS (
    SELECT 1 FROM sys.index_columns
    WHERE object_id = OBJECT_ID(N'[dbo].[LokiLockingsHistory]', N'U') AND key_ordinal = 1
        AND COL_NAME(object_id, column_id) = N'ServiceKey')
    CREATE INDEX [IX_ServiceKey] ON [dbo].[LokiLockingsHistory] ([ServiceKey], [EndedAt]);
