-- server reports what this session is connected to.
--
-- Result: one row: the server's major version, the session's encoding, whether the server is a standby, and whether the
-- session only reads; the login.
SELECT current_setting('server_version_num')::int / 10000 AS version, pg_client_encoding()::text AS encoding,
    pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::boolean AS only_reads, current_user::text AS login;
