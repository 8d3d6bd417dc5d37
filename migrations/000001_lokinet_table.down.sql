-- 000001 down drops the table. It refuses while there is a row: a row is a lock that somebody holds.
--
-- Re-runnable: without the table there is nothing to do. The look locks the whole table until it is gone, so that no row
-- can appear in between.
IF OBJECT_ID(N'[dbo].[LokiLockings]', N'U') IS NOT NULL
BEGIN TRY
    BEGIN TRANSACTION;
    IF EXISTS (SELECT 1 FROM [dbo].[LokiLockings] WITH (TABLOCKX, HOLDLOCK))
        THROW 50001, N'The table of locks cannot be dropped: it has rows, and each is a lock that somebody holds. Delete them first.', 1;
    DROP TABLE [dbo].[LokiLockings];
    COMMIT TRANSACTION;
END TRY
BEGIN CATCH
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
    THROW;
END CATCH;
