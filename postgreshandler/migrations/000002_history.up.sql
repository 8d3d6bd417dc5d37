-- 000002 up makes the table of the history: what became of claims that are over. Only a handler that was made with
-- WithHistory reads or writes it, and the two columns that it adds to the table of locks: when and how what ran under a
-- claim ended, if the claim is kept after that, for a minimum hold.
--
-- The primary key is what a look at one lock needs, the newest last. The index is for pruning by age; rows come in its
-- order, so it grows at its end.
--
-- Re-runnable: what is there is left as it is. Two sessions at once can fail all the same (23505, in the catalog);
-- migrations.Apply has them take turns.
CREATE TABLE IF NOT EXISTS "public"."loki_lockings_history" (
    service_key text COLLATE "C" NOT NULL,
    granted_at timestamptz NOT NULL,
    token text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    PRIMARY KEY (service_key, granted_at, token)
);
CREATE INDEX IF NOT EXISTS "loki_lockings_history_ended" ON "public"."loki_lockings_history" (ended_at);
ALTER TABLE "public"."loki_lockings"
    ADD COLUMN IF NOT EXISTS ended_at timestamptz,
    ADD COLUMN IF NOT EXISTS outcome text COLLATE "C";
