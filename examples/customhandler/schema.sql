-- One row is one lock. It stays after its claim has expired, and is replaced by the next one.
--
-- Text is compared byte by byte (the collation BINARY, SQLite's default), so that keys which differ only in case or
-- accents are different locks. Times are the database's, in ms since 1970. holder and since are for people who look.
CREATE TABLE IF NOT EXISTS loki_locks (
    key    TEXT    NOT NULL PRIMARY KEY,
    token  TEXT    NOT NULL,
    holder TEXT    NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
