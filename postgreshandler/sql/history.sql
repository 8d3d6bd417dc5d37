-- history tells of the latest claims of a key, the newest first.
--
-- Arguments: $1 key, $2 how many.
--
-- Result: a row each: token, holder, fence, since, until, outcome, the times in microseconds since 1970. The claim that has
-- not made way yet is the first, whatever the clock that dated the others.
--
-- Atomic: one SELECT. A claim is in one of the two tables, because it is moved from the one to the other by the statement
-- that ends it. Of client_encoding see grant.
SELECT token, holder, fence,
    (extract(epoch FROM granted_at) * 1000000)::bigint AS since,
    (extract(epoch FROM ended_at) * 1000000)::bigint AS until,
    outcome
FROM (
    SELECT true AS latest, l.token, l.holder, l.fence, l.granted_at,
        CASE WHEN l.expires_at <= clock.now AND l.ended_at >= l.granted_at THEN l.ended_at ELSE l.expires_at END AS ended_at,
        CASE WHEN l.expires_at > clock.now THEN 'held' WHEN l.ended_at >= l.granted_at THEN l.outcome ELSE 'expired' END AS outcome
    FROM (SELECT clock_timestamp() AS now) AS clock, "public"."loki_lockings" AS l
    WHERE l.service_key = $1::text AND l.token <> ''
    UNION ALL
    (SELECT false, h.token, h.holder, h.fence, h.granted_at, h.ended_at, h.outcome
    FROM "public"."loki_lockings_history" AS h
    WHERE h.service_key = $1::text
    ORDER BY h.granted_at DESC
    LIMIT $2::bigint)
) AS runs
WHERE CASE pg_client_encoding() WHEN 'UTF8' THEN true ELSE pg_client_encoding()::text::boolean END
ORDER BY latest DESC, granted_at DESC
LIMIT $2::bigint;
