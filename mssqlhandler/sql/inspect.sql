-- inspect says who holds a key.
--
-- Arguments: @p1 key, @p2 the seconds after which a row without a token is over, or -1 for never.
--
-- Result: one row if somebody does, else none: Holder, Since, Until, Left, the times in microseconds, since 1970 and from
-- now. LokiNet does whose clock its date is from, so it is not passed on as one of the store's.
--
-- Atomic: one SELECT of one row. What it tells may be over by the time it is read.
DECLARE @key nvarchar(400) = @p1, @lokinetSeconds int = @p2,
        @now datetime2(7) = SYSUTCDATETIME(), @local datetime2(7) = SYSDATETIME();
DECLARE @lokinetOver datetime2(7) = CASE WHEN @lokinetSeconds >= 0 THEN
    DATEADD(second, -@lokinetSeconds, CASE WHEN @local < @now THEN @local ELSE @now END) END;

SELECT CASE WHEN [Token] IS NULL THEN N'LokiNet' ELSE [Holder] END AS [Holder],
    CASE WHEN [Token] IS NOT NULL THEN DATEDIFF_BIG(microsecond, '19700101', [CreationDate]) END AS [Since],
    DATEDIFF_BIG(microsecond, '19700101', [ExpiresAt]) AS [Until],
    DATEDIFF_BIG(microsecond, @now, [ExpiresAt]) AS [Left]
FROM [dbo].[LokiLockings]
WHERE [ServiceKey] = @key
    AND ([ExpiresAt] > @now
        OR ([Token] IS NULL AND (@lokinetOver IS NULL OR [CreationDate] > @lokinetOver)));
