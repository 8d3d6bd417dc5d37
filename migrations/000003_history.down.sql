-- 000003 down drops the table of the claims that have ended, with what is in it. Handlers with a history must be stopped
-- first; the table of locks is not touched.
--
-- Re-runnable: without the table there is nothing to do.
IF OBJECT_ID(N'[dbo].[LokiLockingsHistory]', N'U') IS NOT NULL
    DROP TABLE [dbo].[LokiLockingsHistory];
