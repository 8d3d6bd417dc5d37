-- release forgets a claim if, and only if, its token still holds the key.
--
-- Arguments: @p1 key, @p2 token, @p3 the key under which fences are remembered, @p4 where to go on sweeping, or ''; with
-- a history also @p5 how what ran ended, 'released' or 'failed', or '' if nothing ran, @p6 the seconds that ended claims are kept.
--
-- Result: one row: Next, where the next release is to go on sweeping, and Held, 1 if the claim was there and had not
-- expired. Releasing what is not held is no error.
--
-- Nothing is left behind, as a rule: the next fence of the key comes from the clock. A fence that the clock has not
-- passed, because the floor of its claim was ahead (another store's clock) or the clock advances in steps, is remembered
-- first, the largest of all keys in one row, so that the next is larger all the same. So is one that the clock passed less
-- than a millisecond ago: an INSERT of the next claim may have drawn its fence before this one, and does not look at the
-- clock again for so little. One that is more than a day ahead is no clock's, and would be a floor for every key: it is
-- forgotten.
--
-- A claim under which nothing ran leaves no run in the history, and one that was kept after what ran under it had ended, and
-- has expired, the end that its row says; see grant.
--
-- Atomic: one DELETE that finds the row by key and token, so that a late release never frees the next holder, and by the
-- fence that has been remembered, and that takes the claim to the history itself. Cut off before it, the batch has
-- remembered a fence for nothing; the claim is still held. Of implicit transactions see grant.
DECLARE @key nvarchar(400) = @p1, @token nvarchar(128) = @p2, @remembered nvarchar(400) = @p3,
        @from nvarchar(400) = @p4, @now datetime2(7) = SYSUTCDATETIME(), @fence bigint, @found int, @tries int = 0,
        @seen int, @last nvarchar(400), @over int, @next nvarchar(400) = N'', @expires datetime2(7), @held int = 0;
--+ DECLARE @ending varchar(10) = @p5, @keep int = @p6, @oldest datetime2(7), @upTo datetime2(7);
DECLARE @clock bigint = DATEDIFF_BIG(microsecond, '19700101', @now), @longOver datetime2(7) = DATEADD(minute, -1, @now);

BEGIN TRY
    IF @@OPTIONS & 2 = 2 THROW 50007, N'This session has IMPLICIT_TRANSACTIONS on.', 1;

    -- A renewal may raise the fence after it has been read: then the row stays, and is read again. The last time it goes
    -- whatever its fence is, since to leave a claim held that was released would be worse.
    WHILE @tries < 3
    BEGIN
        SELECT @tries = @tries + 1, @found = 0;
        SELECT @found = 1, @fence = [Fence], @expires = [ExpiresAt] FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key AND [Token] = @token;
        IF @found = 0 BREAK;
        IF @fence >= @clock - 1000 AND @fence <= @clock + 86400000000
        BEGIN
            BEGIN TRY
                INSERT INTO [dbo].[LokiLockings] ([ServiceKey], [CreationDate], [Token], [ExpiresAt], [Fence])
                SELECT @remembered, @now, @remembered, @now, @fence
                WHERE NOT EXISTS (SELECT 1 FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @remembered);
            END TRY
            BEGIN CATCH
                -- A duplicate key: another release was first. That is no error.
                IF ERROR_NUMBER() NOT IN (2627, 2601) THROW;
            END CATCH;
            UPDATE [dbo].[LokiLockings] SET [Fence] = @fence WHERE [ServiceKey] = @remembered AND [Fence] < @fence;
        END;

        --+ IF @ending <> ''
        --+     DELETE FROM [dbo].[LokiLockings]
        --+     OUTPUT deleted.[ServiceKey], deleted.[Token], deleted.[Holder], deleted.[CreationDate], deleted.[ExpiresAt],
        --+         deleted.[Fence], @now, @ending, deleted.[RunEndedAt], deleted.[RunEnding]
        --+     INTO [dbo].[LokiLockingsHistory] ([ServiceKey], [Token], [Holder], [CreationDate], [ExpiresAt], [Fence], [EndedAt], [Ending],
        --+         [RunEndedAt], [RunEnding])
        --+     WHERE [ServiceKey] = @key AND [Token] = @token AND ([Fence] = @fence OR [Fence] IS NULL OR @tries = 3);
        --+ ELSE
        DELETE FROM [dbo].[LokiLockings]
        WHERE [ServiceKey] = @key AND [Token] = @token AND ([Fence] = @fence OR [Fence] IS NULL OR @tries = 3);
        IF @@ROWCOUNT > 0
        BEGIN
            IF @expires > @now SET @held = 1;
            BREAK;
        END;
    END;
END TRY
BEGIN CATCH
    THROW;
END CATCH;

-- Sweeping: of the next eight keys, those go that expired a minute ago. Whoever waits for such a key has taken it by
-- then, so that nobody is met here; a row that somebody does have is passed over, and the others are held one by one in
-- the order of the only index there is, so that nobody can wait for this in a circle. Looking takes no lock at all: the
-- DELETE looks again. A fence that the clock has not passed stays, and so does the row that remembers them. What goes
-- wrong here is left for the next time: the claim has been released.
BEGIN TRY
    SELECT @seen = COUNT(*), @last = MAX([ServiceKey]), @over = SUM([Over])
    FROM (SELECT TOP (8) [ServiceKey], CASE WHEN [ExpiresAt] <= @longOver THEN 1 ELSE 0 END AS [Over]
        FROM [dbo].[LokiLockings] WITH (READUNCOMMITTED) WHERE [ServiceKey] > @from ORDER BY [ServiceKey]) AS stretch;
    IF @over > 0
        DELETE TOP (8) FROM [dbo].[LokiLockings] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        --+ OUTPUT deleted.[ServiceKey], deleted.[Token], deleted.[Holder], deleted.[CreationDate], deleted.[ExpiresAt],
        --+     deleted.[Fence], @now, 'expired', deleted.[RunEndedAt], deleted.[RunEnding]
        --+ INTO [dbo].[LokiLockingsHistory] ([ServiceKey], [Token], [Holder], [CreationDate], [ExpiresAt], [Fence], [EndedAt], [Ending],
        --+     [RunEndedAt], [RunEnding])
        WHERE [ServiceKey] > @from AND [ServiceKey] <= @last AND [ExpiresAt] <= @longOver AND [Fence] < @clock
            AND [ServiceKey] <> @remembered;
    IF @seen = 8 SET @next = @last;
    -- The oldest of the history are at the beginning of its primary key. More go than come.
    --+ SELECT @oldest = MIN([EndedAt]), @upTo = MAX([EndedAt])
    --+ FROM (SELECT TOP (8) [EndedAt] FROM [dbo].[LokiLockingsHistory] WITH (READUNCOMMITTED)
    --+     WHERE [EndedAt] < DATEADD(second, -@keep, @now) ORDER BY [EndedAt]) AS stretch;
    --+ IF @upTo IS NOT NULL
    --+     DELETE TOP (8) FROM [dbo].[LokiLockingsHistory] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    --+     WHERE [EndedAt] BETWEEN @oldest AND @upTo;
END TRY
BEGIN CATCH
    SET @next = @last;
END CATCH;

SELECT @next AS [Next], @held AS [Held];
