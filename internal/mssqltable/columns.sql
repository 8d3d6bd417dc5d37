-- columns tells what columns the table has, for Faults to judge whether it is the one that is needed.
--
-- Arguments: none. Result: one row for each column, none if there is no such table or this login may not see it: name,
-- type, length in bytes (-1 for max), collation or '', whether the column alone is the key of a unique index, and whether
-- it is the first of any index.
SELECT c.name, TYPE_NAME(c.user_type_id) AS type_name, c.max_length, COALESCE(c.collation_name, N'') AS collation_name,
    CASE WHEN EXISTS (
        SELECT 1 FROM sys.indexes AS i
        WHERE i.object_id = c.object_id AND i.is_unique = 1 AND i.has_filter = 0
            AND EXISTS (SELECT 1 FROM sys.index_columns AS k
                WHERE k.object_id = i.object_id AND k.index_id = i.index_id AND k.column_id = c.column_id AND k.is_included_column = 0)
            AND NOT EXISTS (SELECT 1 FROM sys.index_columns AS k
                WHERE k.object_id = i.object_id AND k.index_id = i.index_id AND k.column_id <> c.column_id AND k.is_included_column = 0)
    ) THEN 1 ELSE 0 END AS is_key,
    CASE WHEN EXISTS (
        SELECT 1 FROM sys.index_columns AS k
        WHERE k.object_id = c.object_id AND k.column_id = c.column_id AND k.key_ordinal = 1
    ) THEN 1 ELSE 0 END AS leads
FROM sys.columns AS c
WHERE c.object_id = OBJECT_ID(N'[dbo].[LokiLockings]', N'U');
