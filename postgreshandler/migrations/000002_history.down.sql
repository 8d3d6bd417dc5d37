-- 000002 down drops the table of the history, with the history.
--
-- Re-runnable: without the table there is nothing to do.
DROP TABLE IF EXISTS "public"."loki_lockings_history";
