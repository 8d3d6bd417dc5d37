-- 000002 up takes the table of LokiNet, with the rows that it has, to the one of Loki: exact keys, and for each claim
-- its token, holder, expiry and fence.
--
-- The key becomes nvarchar, as the driver sends it, with a binary collation, so that case and accents tell keys apart;
-- 400 units are 800 of the 900 bytes that a clustered key may have. Every two keys that were different stay different.
-- A column that is NOT NULL and has no default can be added to an empty table only, so the rows step aside for it: in
-- one transaction, whose first change locks the table, so that nobody sees it without them. ALTER COLUMN with COLLATE
-- would be shorter, but not every server that speaks T-SQL has it.
--
-- The other columns may be NULL, so LokiNet goes on inserting its two; a row without a token is one of its own. Whoever
-- holds a lock is told as it is, whatever its length, hence (max).
--
-- Re-runnable: every step looks first. Of two instances at once one may be told that something exists, or is gone, or
-- be the victim of a deadlock; running it again is then right.
IF NOT EXISTS (
    SELECT 1 FROM sys.columns
    WHERE object_id = OBJECT_ID(N'[dbo].[LokiLockings]', N'U') AND name = N'ServiceKey'
        AND TYPE_NAME(user_type_id) = N'nvarchar' AND max_length >= 800 AND collation_name LIKE N'%BIN2')
BEGIN TRY
    BEGIN TRANSACTION;
    DECLARE @drop nvarchar(max) = (
        SELECT N'ALTER TABLE ' + N'[dbo].[LokiLockings]' + N' DROP CONSTRAINT ' + QUOTENAME(name)
        FROM sys.key_constraints
        WHERE parent_object_id = OBJECT_ID(N'[dbo].[LokiLockings]', N'U') AND type = N'PK');
    IF @drop IS NOT NULL EXEC (@drop);
    IF (SELECT COUNT(*) FROM sys.columns WHERE object_id = OBJECT_ID(N'[dbo].[LokiLockings]', N'U')) <> 2
        THROW 50006, N'The table of locks has other columns than LokiNet''s two, which would lose what is in them: drop them first, or make ServiceKey nvarchar(400) COLLATE Latin1_General_BIN2 NOT NULL and the primary key by hand.', 1;
    SELECT [ServiceKey], [CreationDate] INTO #locks FROM [dbo].[LokiLockings];
    DELETE FROM [dbo].[LokiLockings];
    ALTER TABLE [dbo].[LokiLockings] DROP COLUMN [ServiceKey];
    ALTER TABLE [dbo].[LokiLockings] ADD [ServiceKey] [nvarchar](400) COLLATE Latin1_General_BIN2 NOT NULL
        CONSTRAINT [PK_LokiLockings] PRIMARY KEY CLUSTERED;
    INSERT INTO [dbo].[LokiLockings] ([ServiceKey], [CreationDate]) SELECT [ServiceKey], [CreationDate] FROM #locks;
    DROP TABLE #locks;
    COMMIT TRANSACTION;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    THROW;
END CATCH;

IF COL_LENGTH(N'[dbo].[LokiLockings]', N'Token') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [Token] [nvarchar](128) COLLATE Latin1_General_BIN2 NULL;
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'Holder') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [Holder] [nvarchar](max) NULL;
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'ExpiresAt') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [ExpiresAt] [datetime2](7) NULL;
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'Fence') IS NULL
    ALTER TABLE [dbo].[LokiLockings] ADD [Fence] [bigint] NULL;
