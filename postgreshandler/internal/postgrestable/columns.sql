-- columns tells what a table is like.
--
-- Arguments: $1 the table as it stands in a statement. Result: one row for each column, none if there is no such table:
-- the table's kind and persistence, the column's name and type, whether it may be NULL, whether it compares exactly, its
-- place among the columns of the primary key, or 0, and how many those are.
SELECT c.relkind::text AS kind, c.relpersistence::text AS persistence,
    a.attname::text AS name, format_type(a.atttypid, NULL) AS type, NOT a.attnotnull AS nullable,
    coalesce(o.collisdeterministic, true) AS exact,
    coalesce(array_position(i.indkey::smallint[], a.attnum) - array_lower(i.indkey::smallint[], 1) + 1, 0)::int AS place,
    coalesce(i.indnkeyatts, 0)::int AS places
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation AS o ON o.oid = a.attcollation
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
WHERE c.oid = to_regclass($1::text);
