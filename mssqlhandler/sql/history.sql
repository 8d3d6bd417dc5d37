-- history tells of the latest claims of a key, the newest first: the one in the table of locks, and those that ended.
--
-- Arguments: @p1 key, @p2 how many at most.
--
-- Result: a row for each: Token, Holder, Fence, Since, Until, Outcome, the times in microseconds since 1970. LokiNet does
-- not say by whose clock its date is, so it is not passed on as one of the store's. A claim in the table of locks holds,
-- unless it has expired and nobody has taken its key since; if it was kept after what ran under it had ended, it has ended so.
--
-- Atomic: one SELECT. A claim that ends while it reads may be told twice under READ COMMITTED: the table of locks is
-- read first, so that none is missed.
DECLARE @key nvarchar(400) = @p1, @limit int = @p2, @now datetime2(7) = SYSUTCDATETIME();

SELECT TOP (@limit) [Token], [Holder], [Fence],
    CASE WHEN [Token] IS NOT NULL THEN DATEDIFF_BIG(microsecond, '19700101', [CreationDate]) END AS [Since],
    DATEDIFF_BIG(microsecond, '19700101', [Until]) AS [Until], [Outcome]
FROM (
    SELECT [Token], CASE WHEN [Token] IS NULL THEN N'LokiNet' ELSE [Holder] END AS [Holder], [Fence], [CreationDate],
        CASE WHEN [ExpiresAt] <= @now AND [RunEndedAt] >= [CreationDate] THEN [RunEndedAt] ELSE [ExpiresAt] END AS [Until],
        CASE WHEN [ExpiresAt] <= @now THEN CASE WHEN [RunEndedAt] >= [CreationDate] THEN [RunEnding] ELSE 'expired' END ELSE 'held' END AS [Outcome],
        CONVERT(datetime2(7), '99991231') AS [EndedAt]
    FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key
    UNION ALL
    SELECT [Token], [Holder], [Fence], [CreationDate], [Until], [Outcome], [EndedAt] FROM (
        SELECT TOP (@limit) [Token], CASE WHEN [Token] IS NULL THEN N'LokiNet' ELSE [Holder] END AS [Holder], [Fence],
            [CreationDate], [Until], [Outcome], [EndedAt]
        FROM [dbo].[LokiLockingsHistory] WHERE [ServiceKey] = @key ORDER BY [EndedAt] DESC) AS ended) AS runs
ORDER BY [EndedAt] DESC;
