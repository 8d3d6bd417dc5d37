-- 000002 down drops the table of the history, with the history, and the columns of the table of locks that are for it.
--
-- Re-runnable: without them there is nothing to do.
DROP TABLE IF EXISTS "public"."loki_lockings_history";
ALTER TABLE IF EXISTS "public"."loki_lockings" DROP COLUMN IF EXISTS ended_at, DROP COLUMN IF EXISTS outcome;
