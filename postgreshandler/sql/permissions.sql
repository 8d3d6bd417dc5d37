-- permissions tells what this login may not do with a table of all that a handler does.
--
-- Arguments: $1 the table as it stands in a statement. It has to be there. Result: one row: the missing privileges,
-- separated by commas.
SELECT coalesce(string_agg(p.name, ', '), '') AS missing
FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS p (name)
WHERE NOT has_table_privilege($1::text, p.name);
