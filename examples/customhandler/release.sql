-- Forgets a claim if its token still holds.
--
-- ?1 key, ?2 token
--
-- Atomic because it is one statement: between a look and a DELETE the lock could become somebody else's.
DELETE FROM loki_locks WHERE key = ?1 AND token = ?2;
