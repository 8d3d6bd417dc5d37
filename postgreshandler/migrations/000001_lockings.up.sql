-- 000001 up makes the table that locks are kept in.
--
-- Text columns compare by code points (COLLATE "C"), whatever the database's own collation takes for equal. A renewal
-- changes no column that an index has, and finds room in its page (fillfactor), so that it stays a heap-only update and
-- leaves nothing behind in an index.
--
-- Re-runnable: a table that is there is left as it is. Two sessions at once can fail all the same (23505, in the
-- catalog); migrations.Apply has them take turns.
CREATE TABLE IF NOT EXISTS "public"."loki_lockings" (
    service_key text COLLATE "C" NOT NULL PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    fence bigint NOT NULL
) WITH (fillfactor = 70);
