-- Records a claim unless another token holds.
--
-- ?1 key, ?2 token, ?3 holder, ?4 expiry in ms, ?5 token that may be replaced (or '')
-- Result: one row if the claim holds now, none if another token does.
--
-- Atomic because it is one statement: SQLite lets one connection write at a time, and reads its clock once a statement,
-- after its turn has come. A claim still holds in the millisecond in which it expires: the clock is cut to whole ms.
INSERT INTO loki_locks AS held (key, token, holder, since, until)
SELECT ?1, ?2, ?3, now, now + ?4
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now)
WHERE true -- without it the parser takes ON CONFLICT for a join's ON
ON CONFLICT (key) DO UPDATE
SET token  = excluded.token,
    holder = excluded.holder,
    since  = iif(held.token = excluded.token, held.since, excluded.since),
    until  = excluded.until
WHERE held.token IN (excluded.token, ?5) -- it is ours already, or known to be over
   OR held.until < excluded.since        -- it has expired
RETURNING 1;
