-- extend starts a claim's expiry anew if, and only if, it still holds.
--
-- Arguments: @p1 key, @p2 token, @p3 and @p4 the expiry in whole seconds and the milliseconds beyond them, @p5 the floor
-- of the fence; with a history, whose lines are marked with +, also @p6 how what ran ended, or '' if it has not; see grant.
--
-- Result: one row: Held. It is told by a SELECT because the count that comes with an UPDATE is missing where NOCOUNT is
-- a server's default.
--
-- Atomic: one UPDATE that finds the row by key and token. A claim that has expired is over even if nobody has taken the
-- key: whoever looked in between was told that it is free. In a session with implicit transactions it would not be
-- committed; see grant.
DECLARE @key nvarchar(400) = @p1, @token nvarchar(128) = @p2, @seconds int = @p3, @milliseconds int = @p4,
        @floor bigint = @p5, @now datetime2(7) = SYSUTCDATETIME();
--+ DECLARE @ending varchar(10) = @p6;
IF @@OPTIONS & 2 = 2 THROW 50007, N'This session has IMPLICIT_TRANSACTIONS on.', 1;

UPDATE [dbo].[LokiLockings]
SET [ExpiresAt] = DATEADD(millisecond, @milliseconds, DATEADD(second, @seconds, @now)),
    [Fence] = CASE WHEN [Fence] < @floor THEN @floor ELSE [Fence] END
    --+ , [RunEndedAt] = CASE WHEN @ending = '' OR [RunEndedAt] >= [CreationDate] THEN [RunEndedAt] WHEN @now > [CreationDate] THEN @now ELSE [CreationDate] END,
    --+ [RunEnding] = CASE WHEN @ending = '' THEN [RunEnding] ELSE @ending END
WHERE [ServiceKey] = @key AND [Token] = @token AND [ExpiresAt] > @now;

SELECT @@ROWCOUNT AS [Held];
