-- release forgets a claim if, and only if, its token still holds the key.
--
-- Arguments: @p1 key, @p2 token, @p3 the key under which fences are remembered.
--
-- Result: none. Releasing what is not held is no error.
--
-- Nothing is left behind, as a rule: the next fence of the key comes from the clock. A fence that the clock has not
-- passed, because the floor of its claim was ahead (another store's clock) or the clock advances in steps, is remembered
-- first, the largest of all keys in one row, so that the next is larger all the same. One that is more than a day ahead
-- is no clock's, and would be a floor for every key: it is forgotten.
--
-- Atomic: one DELETE that finds the row by key and token, so that a late release never frees the next holder. Cut off
-- before it, the batch has remembered a fence for nothing; the claim is still held.
DECLARE @key nvarchar(400) = @p1, @token nvarchar(128) = @p2, @remembered nvarchar(400) = @p3,
        @now datetime2(7) = SYSUTCDATETIME(), @fence bigint;
DECLARE @clock bigint = DATEDIFF_BIG(microsecond, '19700101', @now);

SET @fence = (SELECT [Fence] FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key AND [Token] = @token);
IF @fence >= @clock AND @fence <= @clock + 86400000000
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

DELETE FROM [dbo].[LokiLockings] WHERE [ServiceKey] = @key AND [Token] = @token;
