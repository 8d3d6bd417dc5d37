-- grant records a claim if nobody else holds its key, and says who does.
--
-- Arguments: $1 key, $2 token, $3 holder, $4 the expiry in milliseconds, $5 the floor of the fence, $6 the token
-- superseded or ''; and of a handler that keeps a history, whose lines are marked with +: $7 how what ran under the claim
-- ended, 'released' or 'failed', or '' if it has not.
--
-- Result: one row: held, fence, holder, since, until, remaining. Times are microseconds, since 1970 and from now, so that
-- no setting of a session can move them to another time zone. With a history there may be none: then nothing was changed,
-- and the statement is to be sent again.
--
-- Atomic: one statement, which commits by itself. It looks first, by its snapshot, and a key that is held is answered
-- from there: nothing is written or locked for a caller who comes in vain. If the key may be free the row decides, as it
-- is by then and not as the snapshot has it: ON CONFLICT waits for whoever is at it, and what it finds is a row to take,
-- or one that somebody was quicker to take. That one is written back as it is, which is the only way to be told in the
-- same statement whose it is; DO UPDATE ... WHERE would answer nothing. A row without a token is a fence that release kept
-- and nobody's claim, whatever the clock says of its expiry.
--
-- The gate is held by one grant, or release, of a key at a time, until it has committed. The fence of a row that is not
-- there yet comes from the clock, and is drawn before the row is there: without the gate another claim could be granted
-- in between, with a larger fence, and released, which takes the row and its fence away.
--
-- What a claim replaces is told to the history as it is by then, and not as the snapshot has it: a renewal may have come in
-- between. That is why the row is locked first, which nobody but a renewal can be at while the gate is held. A row that
-- has come since the snapshot was taken cannot be locked, nor told; if it is one to replace it is written back as it is,
-- and the next try sees it.
--
-- The row of a claim under which nothing runs any more, but which is kept (a minimum hold, a completion record), says when and
-- how that ended, for the history. A handler without a history does not: an end before the grant is one of an earlier claim.
--
-- The clock is read once, before the row is waited for: who had to wait takes fewer rows for expired and promises less,
-- never more. It is clock_timestamp(), because now() is when the transaction began, which may be before the gate.
--
-- In a session whose client_encoding is not UTF8 the key would be taken for another text, and so be another key than that of
-- the other sessions. Such an encoding is no boolean, so that the statement fails (22P02) before it does anything.
WITH seen AS MATERIALIZED (
    SELECT l.token, l.holder, l.granted_at, l.expires_at, l.fence,
        l.expires_at > clock_timestamp() AND l.token NOT IN ($2::text, $6::text, '') AS busy
    FROM "public"."loki_lockings" AS l
    WHERE l.service_key = $1::text AND CASE pg_client_encoding() WHEN 'UTF8' THEN true ELSE pg_client_encoding()::text::boolean END
), gate AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended($1::text COLLATE "C", '"public"."loki_lockings"'::regclass::oid::bigint))
    WHERE NOT EXISTS (SELECT FROM seen WHERE busy)
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM gate
--+ ), replaced AS MATERIALIZED (
--+     SELECT l.token, l.holder, l.granted_at, l.expires_at, l.fence,
--+         CASE WHEN l.ended_at >= l.granted_at THEN l.ended_at END AS ended_at, l.outcome
--+     FROM clock, "public"."loki_lockings" AS l
--+     WHERE l.service_key = $1::text
--+     FOR UPDATE OF l
), taken AS (
    INSERT INTO "public"."loki_lockings" AS l (service_key, token, holder, granted_at, expires_at, fence
        --+ , ended_at, outcome
    )
    SELECT $1::text, $2::text, $3::text, now, now + $4::bigint * interval '1 millisecond',
        greatest($5::bigint, (extract(epoch FROM now) * 1000000)::bigint)
        --+ , CASE WHEN $7::text <> '' THEN now END, nullif($7::text, '')
    FROM clock
    --+ LEFT JOIN replaced ON true
    ON CONFLICT (service_key) DO UPDATE SET (token, holder, granted_at, expires_at, fence
        --+ , ended_at, outcome
    ) = (
        -- The same claim again, while it holds, keeps its date and its fence.
        SELECT excluded.token, excluded.holder, l.granted_at, excluded.expires_at, greatest(l.fence, $5::bigint)
            --+ , CASE WHEN $7::text = '' OR l.ended_at >= l.granted_at THEN l.ended_at ELSE greatest(l.granted_at, excluded.ended_at) END,
            --+ coalesce(excluded.outcome, l.outcome)
        WHERE l.expires_at > excluded.granted_at AND l.token = excluded.token
        UNION ALL
        -- A claim that is over makes way for a new one.
        SELECT excluded.token, excluded.holder, excluded.granted_at, excluded.expires_at, greatest(l.fence + 1, excluded.fence)
            --+ , excluded.ended_at, excluded.outcome
        WHERE (l.expires_at <= excluded.granted_at OR l.token <> excluded.token AND l.token IN ($6::text, ''))
        --+ AND (l.token = '' OR EXISTS (SELECT FROM replaced))
        UNION ALL
        -- Somebody was quicker.
        SELECT l.token, l.holder, l.granted_at, l.expires_at, l.fence
            --+ , l.ended_at, l.outcome
        WHERE l.expires_at > excluded.granted_at AND l.token NOT IN (excluded.token, $6::text, '')
        --+ UNION ALL
        -- Somebody was, and has made way already, but the history is to be told of it.
        --+ SELECT l.token, l.holder, l.granted_at, l.expires_at, l.fence, l.ended_at, l.outcome
        --+ WHERE (l.expires_at <= excluded.granted_at OR l.token <> excluded.token AND l.token = $6::text)
        --+     AND l.token <> '' AND NOT EXISTS (SELECT FROM replaced)
    )
    RETURNING l.token, l.holder, l.granted_at, l.expires_at, l.fence
), answer AS (
    SELECT token = $2::text AS held, fence, holder, granted_at, expires_at FROM taken
    --+ , clock WHERE expires_at > clock.now AND (token = $2::text OR token <> $6::text)
    UNION ALL
    SELECT false, 0, holder, granted_at, expires_at FROM seen WHERE busy
--+ ), ended AS (
--+     INSERT INTO "public"."loki_lockings_history" (service_key, granted_at, token, holder, fence, ended_at, outcome)
--+     SELECT $1::text, replaced.granted_at, replaced.token, replaced.holder, replaced.fence,
--+         coalesce(replaced.ended_at, least(replaced.expires_at, clock.now)),
--+         CASE WHEN replaced.ended_at IS NOT NULL THEN replaced.outcome WHEN replaced.expires_at <= clock.now THEN 'expired' ELSE 'superseded' END
--+     FROM replaced, clock, answer
--+     WHERE answer.held AND replaced.token <> '' AND (replaced.token <> $2::text OR replaced.granted_at <> answer.granted_at)
--+     ON CONFLICT DO NOTHING
), told AS (
    -- What was said to be held for longer is free earlier.
    SELECT count(pg_notify('loki:public.loki_lockings', $1::text)) FROM seen, clock, answer
    WHERE answer.held AND seen.expires_at > clock.now AND seen.expires_at > answer.expires_at
)
SELECT answer.held, answer.fence, answer.holder,
    (extract(epoch FROM answer.granted_at) * 1000000)::bigint AS since,
    (extract(epoch FROM answer.expires_at) * 1000000)::bigint AS until,
    (extract(epoch FROM answer.expires_at - clock_timestamp()) * 1000000)::bigint AS remaining
FROM answer, told;
