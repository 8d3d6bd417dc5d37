-- extend starts a claim's expiry anew if, and only if, it still holds.
--
-- Arguments: $1 key, $2 token, $3 the expiry in milliseconds, $4 the floor of the fence; and of a handler that keeps a
-- history, whose lines are marked with +: $5 how what ran ended, or '' if it has not; see grant.
--
-- Result: one row: held.
--
-- Atomic: one UPDATE that finds the row by key and token. A claim that has expired is over even if nobody has taken the
-- key: whoever looked in between was told that it is free. The key stays held throughout, so nothing here needs the gate
-- of grant and release. The text of a session whose client_encoding is not UTF8 would be another key: see grant.
WITH seen AS MATERIALIZED (
    SELECT l.expires_at FROM "public"."loki_lockings" AS l WHERE l.service_key = $1::text AND l.token = $2::text
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), extended AS (
    UPDATE "public"."loki_lockings" AS l
    SET expires_at = clock.now + $3::bigint * interval '1 millisecond', fence = greatest(l.fence, $4::bigint)
        --+ , ended_at = CASE WHEN $5::text = '' OR l.ended_at >= l.granted_at THEN l.ended_at ELSE greatest(l.granted_at, clock.now) END,
        --+ outcome = coalesce(nullif($5::text, ''), l.outcome)
    FROM clock
    WHERE l.service_key = $1::text AND l.token = $2::text AND l.expires_at > clock.now
        AND CASE pg_client_encoding() WHEN 'UTF8' THEN true ELSE pg_client_encoding()::text::boolean END
    RETURNING l.expires_at
), told AS (
    -- What was said to be held for longer is free earlier.
    SELECT count(pg_notify('loki:public.loki_lockings', $1::text)) FROM seen, extended
    WHERE seen.expires_at > extended.expires_at
)
SELECT EXISTS (SELECT FROM extended) AS held FROM told;
