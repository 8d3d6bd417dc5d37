-- 000001 up makes the table as the .NET library LokiNet documents it, if there is none. A table that is there is left
-- as it is: 000002 takes it over.
--
-- Re-runnable: one conditional statement. Of two instances at once one may be told that the object exists (2714).
IF OBJECT_ID(N'[dbo].[LokiLockings]', N'U') IS NULL
    CREATE TABLE [dbo].[LokiLockings](
        [ServiceKey] [varchar](50) NOT NULL,
        [CreationDate] [datetime] NOT NULL,
        CONSTRAINT [PK_LokiLockings] PRIMARY KEY CLUSTERED ([ServiceKey] ASC)
    );
