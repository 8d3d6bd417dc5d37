-- 000003 down drops the table of the claims that have ended, with what is in it, and the columns of the table of locks that
-- are for it. Handlers with a history must be stopped first; the locks are not touched.
--
-- Re-runnable: without them there is nothing to do.
IF OBJECT_ID(N'[dbo].[LokiLockingsHistory]', N'U') IS NOT NULL
    DROP TABLE [dbo].[LokiLockingsHistory];
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'RunEndedAt') IS NOT NULL
    ALTER TABLE [dbo].[LokiLockings] DROP COLUMN [RunEndedAt];
IF COL_LENGTH(N'[dbo].[LokiLockings]', N'RunEnding') IS NOT NULL
    ALTER TABLE [dbo].[LokiLockings] DROP COLUMN [RunEnding];
