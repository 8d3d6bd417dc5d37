-- 000003 up makes the table of the claims that have ended, for handlers with a history. Handlers without one never name
-- it, nor the two columns that the table of locks gets: when and how what ran under a claim ended, if the claim is kept after
-- that, for a minimum hold.
--
-- A statement that ends a claim moves its row here with OUTPUT INTO, which forbids triggers, foreign keys and checks. What
-- became of it follows from when it would have expired, when it ended and what ended it; of a claim that was kept after the end
-- of what ran under it, from that.
--
-- The primary key is in the order in which rows come and go: new ones at its end, the oldest, which releases remove, at its
-- beginning. The index is for those who ask for one key.
--
-- Re-runnable: every step looks first. Of two instances at once one may be told that something exists (2714, 1913, 2705).
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
        [RunEndedAt] [datetime2](7) NULL,
        [RunEnding] [varchar](10) NULL,
        [Id] [bigint] IDENTITY NOT NULL,
        [Until] AS CASE WHEN [RunEndedAt] >= [CreationDate] THEN [RunEndedAt] WHEN [ExpiresAt] < [EndedAt] THEN [ExpiresAt] ELSE [EndedAt] END,
        [Outcome] AS CASE WHEN [RunEndedAt] >= [CreationDate] AND ([ExpiresAt] <= [EndedAt] OR [Ending] = 'superseded') THEN [RunEnding]
            WHEN [Token] IS NULL OR [ExpiresAt] <= [EndedAt] THEN 'expired' ELSE [Ending] END,
        CONSTRAINT [PK_LokiLockingsHistory] PRIMARY KEY CLUSTERED ([EndedAt], [Id])
    );

IF NOT EXISTS (
    SELECT 1 FROM sys.index_columns
    WHERE object_id = OBJECT_ID(N'[dbo].[LokiLockingsHistory]', N'U') AND key_ordinal = 1
        AND COL_NAME(object_id, column_id) = N'ServiceKey')
    CREATE INDEX [IX_ServiceKey] ON [dbo].[LokiLockingsHistory] ([ServiceKey], [EndedAt]);

IF COL_LENGTH(N'[dbo].[LokiLockings]', N'RunEndedAt') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [RunEndedAt] [datetime2](7) NULL;
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'RunEnding') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [RunEnding] [varchar](10) NULL;
