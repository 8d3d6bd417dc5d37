-- 000002 down takes the table back to the one of LokiNet, with the rows that LokiNet wrote.
--
-- It refuses while a row does not fit the older form: a claim that is held, which LokiNet would take for a lock that
-- never ends, or a key that varchar(50) cannot hold, or two keys that the database's collation takes for equal. Claims
-- that have expired are deleted.
--
-- Re-runnable: without the columns that 000002 added there is nothing to do, and all of it is one transaction, whose
-- first change locks the table before it looks. What names those columns is in strings, because a batch in which they
-- are named would not compile once they are gone.
DECLARE @table nvarchar(600) = N'[dbo].[LokiLockings]', @sql nvarchar(max);
IF COL_LENGTH(@table, N'Token') IS NOT NULL
BEGIN TRY
    BEGIN TRANSACTION;
    SELECT @sql = N'ALTER TABLE ' + @table + N' DROP CONSTRAINT ' + QUOTENAME(name)
    FROM sys.key_constraints WHERE parent_object_id = OBJECT_ID(@table, N'U') AND type = N'PK';
    IF @sql IS NOT NULL EXEC (@sql);

    SET @sql = N'DELETE FROM ' + @table + N' WHERE [Token] IS NOT NULL AND [ExpiresAt] <= SYSUTCDATETIME();
        IF EXISTS (SELECT 1 FROM ' + @table + N' WHERE [Token] IS NOT NULL)
            THROW 50002, N''The table of locks cannot go back to the form of LokiNet: claims are held. Stop their holders first.'', 1;
        ALTER TABLE ' + @table + N' DROP COLUMN [Token];
        ALTER TABLE ' + @table + N' DROP COLUMN [Holder];
        ALTER TABLE ' + @table + N' DROP COLUMN [ExpiresAt];
        ALTER TABLE ' + @table + N' DROP COLUMN [Fence];';
    EXEC (@sql);
    IF (SELECT COUNT(*) FROM sys.columns WHERE object_id = OBJECT_ID(N'[dbo].[LokiLockings]', N'U')) <> 2
        THROW 50006, N'The table of locks has columns of somebody else''s, which would lose what is in them: drop them first.', 1;

    IF EXISTS (SELECT 1 FROM [dbo].[LokiLockings]
        WHERE DATALENGTH(CONVERT(varchar(1600), [ServiceKey] COLLATE DATABASE_DEFAULT)) > 50)
        THROW 50003, N'The table of locks cannot go back to the form of LokiNet: a key is longer than 50 characters. Delete its row first.', 1;
    IF EXISTS (SELECT 1 FROM [dbo].[LokiLockings]
        WHERE CONVERT(nvarchar(400), CONVERT(varchar(1600), [ServiceKey] COLLATE DATABASE_DEFAULT)) COLLATE Latin1_General_BIN2 <> [ServiceKey])
        THROW 50004, N'The table of locks cannot go back to the form of LokiNet: a key has characters that varchar does not have in this database. Delete its row first.', 1;
    IF EXISTS (SELECT 1 FROM [dbo].[LokiLockings]
        GROUP BY CONVERT(varchar(50), [ServiceKey] COLLATE DATABASE_DEFAULT) HAVING COUNT(*) > 1)
        THROW 50005, N'The table of locks cannot go back to the form of LokiNet: two keys differ in what the collation of this database ignores, such as case. Delete a row first.', 1;

    SELECT [ServiceKey], [CreationDate] INTO #locks FROM [dbo].[LokiLockings];
    DELETE FROM [dbo].[LokiLockings];
    ALTER TABLE [dbo].[LokiLockings] DROP COLUMN [ServiceKey];
    ALTER TABLE [dbo].[LokiLockings] ADD [ServiceKey] [varchar](50) NOT NULL CONSTRAINT [PK_LokiLockings] PRIMARY KEY CLUSTERED;
    INSERT INTO [dbo].[LokiLockings] ([ServiceKey], [CreationDate]) SELECT [ServiceKey], [CreationDate] FROM #locks;
    DROP TABLE #locks;
    COMMIT TRANSACTION;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    THROW;
END CATCH;
