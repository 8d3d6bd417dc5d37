-- permissions tells what this login may do with the table.
--
-- Arguments: none. Result: a row for each of four permissions: the user's name in this database, the permission, and
-- whether it has it. For a table that is not there, or that this login may not see, that is whether it has it for the
-- whole database.
--
-- Atomic: one SELECT, of the catalog alone.
SELECT USER_NAME() AS [User], wanted.name AS [Permission],
    COALESCE(CASE WHEN OBJECT_ID(N'[dbo].[LokiLockings]', N'U') IS NULL
        THEN HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', wanted.name)
        ELSE HAS_PERMS_BY_NAME(N'[dbo].[LokiLockings]', N'OBJECT', wanted.name) END, 0) AS [Granted]
FROM (SELECT N'SELECT' AS name UNION ALL SELECT N'INSERT' UNION ALL SELECT N'UPDATE' UNION ALL SELECT N'DELETE') AS wanted;
