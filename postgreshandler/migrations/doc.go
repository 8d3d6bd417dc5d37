// Package migrations makes the tables that package postgreshandler keeps locks in, and their history.
//
// [Apply] does it from Go. The SQL files are numbered as golang-migrate wants them, and can be used with it as they are:
//
//	source, err := iofs.New(migrations.Files, ".")
//	m, err := migrate.NewWithSourceInstance("iofs", source, "pgx5://...")
//
// 000001 makes
//
//	CREATE TABLE "public"."loki_lockings" (
//		service_key text COLLATE "C" NOT NULL PRIMARY KEY,
//		token       text COLLATE "C" NOT NULL,
//		holder      text COLLATE "C" NOT NULL,
//		granted_at  timestamptz NOT NULL,
//		expires_at  timestamptz NOT NULL,
//		fence       bigint NOT NULL)
//
// and 000002 "public"."loki_lockings_history", and the columns ended_at and outcome of the first table, which only a handler
// with a history uses, and Apply makes with [WithHistory]. What the application's login needs on them, if it does not own them:
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON public.loki_lockings, public.loki_lockings_history TO app;
//
// A down migration refuses, with a sentence, while a claim is held.
//
// It does not run by itself: no handler changes a schema.
package migrations
