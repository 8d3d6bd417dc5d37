-- columns tells what a table is like.
--
-- Arguments: $1 the table as it stands in a statement. Result: one row for each column, none if there is no such table:
-- the table's kind and persistence, what is about it that changes what a statement does, separated by commas, the
-- column's name and type, whether it may be NULL, whether it has to be named in an INSERT, whether it compares exactly,
-- its place among the columns of the primary key, or 0, and how many those are.
--
-- Of triggers those count that come before a row is written: they can change it or leave it out. Of row security it is what
-- applies to this login.
SELECT c.relkind::text AS kind, c.relpersistence::text AS persistence,
    concat_ws(', ',
        CASE WHEN c.relispartition THEN 'partition of another table' END,
        (SELECT 'rules' WHERE EXISTS (SELECT FROM pg_rewrite AS r WHERE r.ev_class = c.oid)),
        CASE WHEN row_security_active(c.oid) THEN 'row security (policies)' END,
        (SELECT 'triggers before each row (' || string_agg(t.tgname, ', ' ORDER BY t.tgname) || ')'
            FROM pg_trigger AS t
            WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3
            HAVING count(*) > 0),
        CASE WHEN NOT i.indimmediate THEN 'a primary key that is DEFERRABLE' END) AS oddities,
    a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, NOT a.attnotnull AS nullable,
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
    coalesce(o.collisdeterministic, true) AS exact,
    coalesce(array_position(i.indkey::smallint[], a.attnum) - array_lower(i.indkey::smallint[], 1) + 1, 0)::int AS place,
    coalesce(i.indnkeyatts, 0)::int AS places
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation AS o ON o.oid = a.attcollation
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
WHERE c.oid = to_regclass($1::text);
