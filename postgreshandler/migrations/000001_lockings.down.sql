-- 000001 down drops the table of locks. It refuses while a claim is held.
--
-- Re-runnable: without the table there is nothing to do. The look locks the table until it is gone, so that no claim can be
-- granted in between.
DO $$
BEGIN
    IF to_regclass('"public"."loki_lockings"') IS NOT NULL THEN
        LOCK TABLE "public"."loki_lockings" IN ACCESS EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM "public"."loki_lockings" WHERE expires_at > clock_timestamp()) THEN
            RAISE EXCEPTION 'The table of locks cannot be dropped: claims are held. Stop their holders first.';
        END IF;
        DROP TABLE "public"."loki_lockings";
    END IF;
END
$$;
