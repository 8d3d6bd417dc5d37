// Package postgreshandler keeps locks in a table of PostgreSQL 14 or later.
//
//	db, err := sql.Open("pgx", "postgres://user:password@host/app") // github.com/jackc/pgx/v5/stdlib
//	...
//	err = migrations.Apply(ctx, db) // once per deployment, by a login that may change the schema
//	...
//	locker, err := loki.NewBuilder().
//		SetServiceKey("invoice-batch").
//		SetPrimaryLockHandler(redishandler.New(rdb)).
//		SetSecondaryLockHandler(postgreshandler.New(db)).
//		Build()
//
// It is as good a primary as a secondary: it grants, renews, reports who holds a lock, issues fencing tokens, and wakes those
// who wait. Package migrations creates the table, "public"."loki_lockings" unless told otherwise. At run time the login needs
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON public.loki_lockings TO app; -- and on loki_lockings_history, with WithHistory
//
// and nothing else; [Check] says at start-up what is missing.
//
// Every operation is one statement that commits by itself. No transaction, session setting, advisory lock of a session or
// connection is kept: a claim outlives the connection that recorded it, and whatever the application does with
// the same pool is not affected; how large that should be is in docs/operations.md. Expiry is judged by the server's clock alone; no time of the
// client's is ever sent, and no time zone matters.
//
// Keys are exact: they are compared by code points, and stored as they are. PostgreSQL cannot store a NUL; a key with one
// is an error, not another key. In a session whose client_encoding is not UTF8 the server would take a key for another
// text, so that such a session is refused: where the database has another encoding, or one was chosen, add
// client_encoding=UTF8 to the data source name. [Open] does.
//
// # What it costs
//
// A caller who finds a lock held costs the server one look into an index: nothing is written. A grant, a renewal and a
// release are a commit each, so the log's disk sets the pace (synchronous_commit). A renewal is a heap-only update. A
// release also notifies those who wait (NOTIFY), for which PostgreSQL has all sessions of a server that notify
// commit one after the other: [WithoutNotify] spares it that. Rows of claims that expired, because their process died or
// because they record an occurrence, are removed by the releases of other claims, from one page at a time: no job, and no
// index on the expiry.
//
// # Waiting
//
// [Handler.Notify] listens over one connection for all who wait in a process, beside the pool's: count one more for each
// handler when you size max_connections. It is there only while there are waiters.
//
// # Poolers
//
// The statements work through PgBouncer and its like, also where a connection is lent to others after each transaction.
// pgx prepares statements by default, which such a pooler may not support: the first time that one fails, the handler stops
// preparing them. A driver that wraps pgx hides how to: [Check] reports it, and default_query_exec_mode=exec in the data
// source name helps. Nobody can listen through such a pooler: name the server itself with [WithListenDSN], or the Locker polls.
//
// # Isolation levels, replicas, failover
//
// Under a default_transaction_isolation other than read committed the losers of a race are turned away by the server and
// ask once more, a release three times. If that is too often, let the login of the locks have its own default:
//
//	ALTER ROLE app SET default_transaction_isolation = 'read committed';
//
// A server that is read-only, as a replica is, counts as unavailable, whatever it knows. In a data source name with several
// hosts say target_session_attrs=read-write. A failover to a replica that is not synchronous can lose the commits of the
// last moments, and with them locks that are held; so can synchronous_commit=off in a crash. Their holders lose them at the
// next renewal, and a fencing token is still larger than all before.
//
// # Fencing tokens
//
// A fencing token is the largest of the last one of the row plus one, the floor that the claim brings, and the server's clock
// in microseconds since 1970. A release deletes the row, and as a rule the clock alone makes the next one larger. A
// row whose fencing token the clock has not passed by then, because the floor came from a store whose clock is ahead, stays until it
// has, already expired. So fencing tokens grow as long as the server's clock does not step back.
//
// # When on call
//
// Who holds what, and for how long yet, if it is not renewed:
//
//	SELECT service_key, holder, granted_at, expires_at - clock_timestamp() AS remaining
//	FROM loki_lockings WHERE expires_at > clock_timestamp() ORDER BY granted_at;
//
// How to take a lock away is in docs/operations.md in the repository, and what to ask the history in docs/postgres.md
// (https://github.com/lokilock/loki/tree/main/docs).
//
// It does not wait for a lock, log, create its table, or know of another handler.
package postgreshandler
