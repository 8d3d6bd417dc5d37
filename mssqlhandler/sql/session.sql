-- session says what of the session or the database keeps the statements from committing; see grant.
--
-- Arguments: none. Result: one row: ImplicitTransactions and ReadOnly, each 0 or 1. A readable secondary replica and a
-- database that was set to read-only are alike here: permissions and tables are as they should be, and nothing can be
-- written. READ_ONLY is what the property says of both.
--
-- Atomic: it looks at a setting and a property, and changes nothing.
SELECT CASE WHEN @@OPTIONS & 2 = 2 THEN 1 ELSE 0 END AS [ImplicitTransactions],
    CASE WHEN CONVERT(nvarchar(60), DATABASEPROPERTYEX(DB_NAME(), N'Updateability')) = N'READ_ONLY' THEN 1 ELSE 0 END AS [ReadOnly];
