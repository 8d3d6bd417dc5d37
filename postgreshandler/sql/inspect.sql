-- inspect says who holds a key.
--
-- Arguments: $1 key.
--
-- Result: one row if somebody does, else none: holder, since, until, remaining, the times in microseconds, since 1970 and
-- from now.
--
-- Atomic: one SELECT of one row. What it tells may be over by the time it is read. A row without a token is a fence that
-- release kept, and nobody's claim. Of client_encoding see grant.
SELECT l.holder,
    (extract(epoch FROM l.granted_at) * 1000000)::bigint AS since,
    (extract(epoch FROM l.expires_at) * 1000000)::bigint AS until,
    (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint AS remaining
FROM "public"."loki_lockings" AS l
WHERE l.service_key = $1::text AND l.token <> '' AND l.expires_at > clock_timestamp()
    AND CASE pg_client_encoding() WHEN 'UTF8' THEN true ELSE pg_client_encoding()::text::boolean END;
