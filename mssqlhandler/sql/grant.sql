-- grant records a claim if nobody else holds its key, and says who does.
--
-- Arguments: @p1 key, @p2 token, @p3 holder, @p4 and @p5 the expiry in whole seconds and the milliseconds beyond them
-- (one int of milliseconds ends at 24.8 days), @p6 the floor of the fence, @p7 the token superseded or '', @p8 the
-- seconds after which a row without a token is over, or -1 for never, @p9 the key under which release remembers fences; with a
-- history, whose lines are marked with +, also @p10 how what ran under the claim ended, 'released' or 'failed', or '' if it
-- has not.
--
-- Result: one row: Held, Fence, Holder, Since, Until, Left. Times are microseconds, since 1970 and from now, so that no
-- driver setting can move them to another time zone. Not held and no Holder: whoever held it was gone when the row was
-- read, which is still an answer.
--
-- Atomic: each statement commits by itself and is right by itself; nothing here needs a transaction, a hint or an
-- isolation level, and a batch that is cut off, or sent twice, leaves nothing half done. The UPDATE decides for a key
-- that has a row, the primary key for one that has none. Of two UPDATEs of one expired row the second waits for the
-- row, then looks at its predicate again, sees a live claim of another token and changes nothing: so it is under READ
-- COMMITTED, with and without row versioning. Under SNAPSHOT it fails with 3960 instead and is repeated. The claim that
-- is replaced gets into the history by the UPDATE itself.
--
-- The row of a claim under which nothing runs any more, but which is kept (a minimum hold, a completion record), says when and
-- how that ended, for the history. A handler without a history does not: an end before the grant is one of an earlier claim.
-- A datetime may be rounded up, hence the two milliseconds.
--
-- @now is read once, before any waiting: a batch that had to wait takes fewer rows for expired and promises less, never
-- more.
--
-- A session whose first statement opens a transaction by itself (SET IMPLICIT_TRANSACTIONS ON) would leave it open, and the
-- claim with it: nobody else would see it, and what ends the session would undo it. So such a session is refused (50007).
--
-- Everything stands in one TRY: a batch would go on after an error of one statement, for which the login has no right,
-- say, and record what has failed already.
DECLARE @key nvarchar(400) = @p1, @token nvarchar(128) = @p2, @holder nvarchar(max) = @p3,
        @seconds int = @p4, @milliseconds int = @p5, @floor bigint = @p6, @supersedes nvarchar(128) = @p7,
        @lokinetSeconds int = @p8, @remembered nvarchar(400) = @p9;
DECLARE @now datetime2(7) = SYSUTCDATETIME(), @local datetime2(7) = SYSDATETIME();
DECLARE @until datetime2(7) = DATEADD(millisecond, @milliseconds, DATEADD(second, @seconds, @now)),
        @clock bigint = DATEDIFF_BIG(microsecond, '19700101', @now);
DECLARE @fence bigint = CASE WHEN @floor > @clock THEN @floor ELSE @clock END,
        @lokinetOver datetime2(7) = CASE WHEN @lokinetSeconds >= 0 THEN
            DATEADD(second, -@lokinetSeconds, CASE WHEN @local < @now THEN @local ELSE @now END) END,
        @last bigint, @held int = 0, @inserted int = 0, @tries int = 0,
        @found int, @mine int, @heldBy nvarchar(max), @since bigint, @heldUntil bigint, @left bigint;
--+ DECLARE @ending varchar(10) = @p10;

BEGIN TRY
    IF @@OPTIONS & 2 = 2 THROW 50007, N'This session has IMPLICIT_TRANSACTIONS on.', 1;

    -- A second pass is for a row that came or went between two statements: then the row decides after all. Who meets
    -- that three times in a row is told that the key is busy, as it has been.
    WHILE @tries < 3
    BEGIN
        SET @tries = @tries + 1;

        -- What is over is replaced. The fence is the table's, in full, because deleted has one too; an alias in a FROM
        -- would do, but has servers that only speak T-SQL join the table with itself.
        UPDATE [dbo].[LokiLockings]
        SET [Token] = @token, [Holder] = @holder, [ExpiresAt] = @until, [CreationDate] = @now,
            [Fence] = CASE WHEN [dbo].[LokiLockings].[Fence] >= @fence THEN [dbo].[LokiLockings].[Fence] + 1 ELSE @fence END
            --+ , [RunEndedAt] = CASE WHEN @ending <> '' THEN DATEADD(millisecond, 2, @now) END, [RunEnding] = NULLIF(@ending, '')
        --+ OUTPUT deleted.[ServiceKey], deleted.[Token], deleted.[Holder], deleted.[CreationDate], deleted.[ExpiresAt],
        --+     deleted.[Fence], @now, 'superseded', deleted.[RunEndedAt], deleted.[RunEnding]
        --+ INTO [dbo].[LokiLockingsHistory] ([ServiceKey], [Token], [Holder], [CreationDate], [ExpiresAt], [Fence], [EndedAt], [Ending],
        --+     [RunEndedAt], [RunEnding])
        WHERE [ServiceKey] = @key
            AND ([ExpiresAt] <= @now
                OR [Token] = @supersedes
                OR ([Token] IS NULL AND [CreationDate] <= @lokinetOver));
        IF @@ROWCOUNT > 0
        BEGIN
            SET @held = 1;
            BREAK;
        END;

        -- Looking first spares a busy key a failing INSERT, which costs the server more than an answer.
        SET @found = 0;
        SELECT @found = 1, @mine = CASE WHEN [Token] = @token THEN 1 ELSE 0 END,
            @heldBy = CASE WHEN [Token] IS NULL THEN N'LokiNet' ELSE [Holder] END,
            @since = CASE WHEN [Token] IS NOT NULL THEN DATEDIFF_BIG(microsecond, '19700101', [CreationDate]) END,
            @heldUntil = DATEDIFF_BIG(microsecond, '19700101', [ExpiresAt]),
            @left = DATEDIFF_BIG(microsecond, SYSUTCDATETIME(), [ExpiresAt])
        FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key;
        IF @found = 1 AND @mine = 1
        BEGIN
            -- The same claim again, while it holds, keeps its fence and its date.
            UPDATE [dbo].[LokiLockings]
            SET [Holder] = @holder, [ExpiresAt] = @until, [Fence] = CASE WHEN [Fence] < @floor THEN @floor ELSE [Fence] END
                --+ , [RunEndedAt] = CASE WHEN @ending = '' OR [RunEndedAt] >= [CreationDate] THEN [RunEndedAt] WHEN @now > [CreationDate] THEN @now ELSE [CreationDate] END,
                --+ [RunEnding] = CASE WHEN @ending = '' THEN [RunEnding] ELSE @ending END
            WHERE [ServiceKey] = @key AND [Token] = @token AND [ExpiresAt] > @now;
            IF @@ROWCOUNT = 0 CONTINUE;
            SET @held = 1;
            BREAK;
        END;
        IF @found = 1 BREAK;
        SELECT @heldBy = NULL, @since = NULL, @heldUntil = NULL, @left = NULL;

        SET @now = SYSUTCDATETIME();
        SET @clock = DATEDIFF_BIG(microsecond, '19700101', @now);
        SET @fence = CASE WHEN @floor > @clock THEN @floor ELSE @clock END;
        SET @last = (SELECT [Fence] FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @remembered);
        IF @last >= @fence SET @fence = @last + 1;
        BEGIN TRY
            INSERT INTO [dbo].[LokiLockings] ([ServiceKey], [CreationDate], [Token], [Holder], [ExpiresAt], [Fence]
                --+ , [RunEndedAt], [RunEnding]
            )
            VALUES (@key, @now, @token, @holder, @until, @fence
                --+ , CASE WHEN @ending <> '' THEN DATEADD(millisecond, 2, @now) END, NULLIF(@ending, '')
            );
            SELECT @held = 1, @inserted = 1;
            BREAK;
        END TRY
        BEGIN CATCH
            -- A duplicate key: somebody else was first. That is no error.
            IF ERROR_NUMBER() NOT IN (2627, 2601) THROW;
        END CATCH;
    END;

    -- The fence of a new row was drawn before the row was there. If the INSERT then waited, another claim may have been
    -- granted and released in the meantime, with a larger fence; now nobody can be, so the clock, and what release
    -- remembers, is past all of them. Most INSERTs take less than the millisecond and are spared a second commit: release
    -- remembers what is younger than that.
    IF @inserted = 1
    BEGIN
        SET @clock = DATEDIFF_BIG(microsecond, '19700101', SYSUTCDATETIME()) - 1000;
        SET @last = (SELECT [Fence] FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @remembered);
        IF @clock > @fence OR @last >= @fence
        BEGIN
            SET @fence = CASE WHEN @last >= @clock + 1000 THEN @last + 1 ELSE @clock + 1000 END;
            UPDATE [dbo].[LokiLockings] SET [Fence] = @fence WHERE [ServiceKey] = @key AND [Token] = @token;
            IF @@ROWCOUNT = 0 SELECT @held = 0, @heldBy = NULL, @since = NULL, @heldUntil = NULL, @left = NULL;
        END;
    END
    -- That of a row which was there is in the row. A row that is another's by now says nothing of it, and the claim is over:
    -- one with the fence that was drawn could be younger than the fence.
    ELSE IF @held = 1
    BEGIN
        SELECT @fence = [Fence] FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key AND [Token] = @token;
        IF @@ROWCOUNT = 0 SELECT @held = 0, @heldBy = NULL, @since = NULL, @heldUntil = NULL, @left = NULL;
    END;

    SELECT @held AS [Held], @fence AS [Fence], @heldBy AS [Holder], @since AS [Since], @heldUntil AS [Until],
        @left AS [Left];
END TRY
BEGIN CATCH
    THROW;
END CATCH;
