-- release forgets a claim if, and only if, its token still holds the key, and tells those who wait.
--
-- Arguments: $1 key, $2 token, $3 whether to be quiet; and of a handler that keeps a history, whose lines are marked
-- with +: $4 how what ran ended, 'released' or 'failed', or '' if nothing ran, $5 how many seconds the history is kept.
--
-- Result: one row if the claim was there, else none: next, which is empty, held, which says whether it had not expired, and
-- told. Releasing what is not held is no error.
--
-- None is to be asked again, once: the claim's own grant may have come in while this waited at the gate, and its row is then
-- none that this statement can see. The next one sees all that was committed before the gate was had.
--
-- Nothing is left behind, as a rule: the next fence of the key comes from the clock. A fence that the clock has not
-- passed, because the floor of its claim was ahead (another store's clock), stays in its row, which says that it has
-- expired: so the next one is larger all the same. Such a row goes when the clock has passed it, as any that expired.
--
-- Those are removed by releases of other keys, a few at a time: each looks at one page of the table, any, and takes what
-- expired a minute ago and nobody is at (SKIP LOCKED, and the row's own gate, which is only tried): it never waits, so no two releases can
-- wait for each other. No index on expires_at is needed, which each renewal would have to maintain. Without TID range scans,
-- before PostgreSQL 14, it would read the whole table.
--
-- A claim under which nothing ran leaves no run in the history, and one that was kept after what ran under it had ended, and
-- has expired, the end that its row says; see grant.
--
-- Atomic: the row is found by key and token and locked before it is judged, so that a late release never frees the next
-- holder, and never misses a claim whose fence a renewal raises at the same moment. The gate is that of grant, and so is the
-- look at client_encoding.
WITH gate AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended($1::text COLLATE "C", '"public"."loki_lockings"'::regclass::oid::bigint))
    WHERE CASE pg_client_encoding() WHEN 'UTF8' THEN true ELSE pg_client_encoding()::text::boolean END
), mine AS MATERIALIZED (
    SELECT l.granted_at, l.token, l.holder, l.fence, l.expires_at
        --+ , CASE WHEN l.ended_at >= l.granted_at THEN l.ended_at END AS ended_at, l.outcome
    FROM gate, "public"."loki_lockings" AS l
    WHERE l.service_key = $1::text AND l.token = $2::text
    FOR UPDATE OF l
), clock AS MATERIALIZED (
    SELECT now, (extract(epoch FROM now) * 1000000)::bigint AS fence
    FROM (SELECT clock_timestamp() AS now FROM gate LEFT JOIN mine ON true) AS t
), deleted AS (
    DELETE FROM "public"."loki_lockings" AS l
    USING mine, clock
    WHERE l.service_key = $1::text AND l.token = $2::text AND mine.fence < clock.fence
), kept AS (
    UPDATE "public"."loki_lockings" AS l
    SET token = '', holder = '', expires_at = clock.now
    FROM mine, clock
    WHERE l.service_key = $1::text AND l.token = $2::text AND mine.fence >= clock.fence
), page AS MATERIALIZED (
    SELECT floor(random() * pg_relation_size('"public"."loki_lockings"'::regclass) / current_setting('block_size')::bigint)::bigint AS n
), found AS MATERIALIZED (
    SELECT l.service_key
    FROM "public"."loki_lockings" AS l
    WHERE l.ctid >= (SELECT format('(%s,0)', n)::tid FROM page) AND l.ctid < (SELECT format('(%s,0)', n + 1)::tid FROM page)
        AND l.expires_at <= (SELECT now - interval '1 minute' FROM clock) AND l.fence < (SELECT fence FROM clock) AND l.service_key <> $1::text
    LIMIT 8
    FOR UPDATE SKIP LOCKED
), swept AS (
    DELETE FROM "public"."loki_lockings" AS l
    USING found
    WHERE l.service_key = found.service_key
        AND pg_try_advisory_xact_lock(hashtextextended(found.service_key COLLATE "C", '"public"."loki_lockings"'::regclass::oid::bigint))
    RETURNING l.service_key, l.granted_at, l.token, l.holder, l.fence, l.expires_at
        --+ , CASE WHEN l.ended_at >= l.granted_at THEN l.ended_at END AS ended_at, l.outcome
--+ ), ended AS (
--+     INSERT INTO "public"."loki_lockings_history" (service_key, granted_at, token, holder, fence, ended_at, outcome)
--+     SELECT $1::text, mine.granted_at, mine.token, mine.holder, mine.fence,
--+         coalesce(mine.ended_at, least(mine.expires_at, clock.now)),
--+         CASE WHEN mine.expires_at > clock.now THEN $4::text WHEN mine.ended_at IS NOT NULL THEN mine.outcome ELSE 'expired' END
--+     FROM mine, clock
--+     WHERE $4::text <> ''
--+     UNION ALL
--+     SELECT swept.service_key, swept.granted_at, swept.token, swept.holder, swept.fence, coalesce(swept.ended_at, swept.expires_at),
--+         CASE WHEN swept.ended_at IS NOT NULL THEN swept.outcome ELSE 'expired' END
--+     FROM swept
--+     WHERE swept.token <> ''
--+     ON CONFLICT DO NOTHING
--+ ), old AS MATERIALIZED (
--+     SELECT h.service_key, h.granted_at, h.token
--+     FROM "public"."loki_lockings_history" AS h
--+     WHERE h.ended_at < (SELECT now - $5::bigint * interval '1 second' FROM clock)
--+     ORDER BY h.ended_at
--+     LIMIT 8
--+     FOR UPDATE SKIP LOCKED
--+ ), pruned AS (
--+     DELETE FROM "public"."loki_lockings_history" AS h
--+     USING old
--+     WHERE h.service_key = old.service_key AND h.granted_at = old.granted_at AND h.token = old.token
)
SELECT '' AS next, mine.expires_at > clock.now AS held,
    CASE WHEN NOT $3::boolean THEN pg_notify('loki:public.loki_lockings', $1::text)::text END AS told
FROM mine, clock;
