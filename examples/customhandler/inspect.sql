-- Tells who holds a lock.
--
-- ?1 key
-- Result: holder, since, until in ms; no row if nobody holds.
SELECT holder, since, until FROM loki_locks
WHERE key = ?1 AND until >= CAST(round(unixepoch('subsec') * 1000) AS INTEGER);
