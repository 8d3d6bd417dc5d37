package customhandler_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/examples/customhandler"
	"github.com/lokilock/loki/lokitest"
)

// open returns a database in a file, as several processes would share it.
func open(t *testing.T, busyTimeout string) *sql.DB {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "locks.db"), busyTimeout)
}

func openFile(t *testing.T, file, busyTimeout string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout("+busyTimeout+")&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	require.NoError(t, err)
	db.SetMaxOpenConns(4) // one writes at a time; more only get into each other's way
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func claim() loki.Claim {
	return loki.Claim{Key: "invoice-batch", Token: "token", Expiry: time.Minute, Holder: "host (pid 1)"}
}

// lock asks as a Locker would, and returns the error alone.
func lock(t *testing.T, db *sql.DB) error {
	t.Helper()
	held, err := customhandler.New(db).Lock(t.Context(), claim())
	require.Equal(t, err == nil, held)
	return err
}

func TestConformance(t *testing.T) {
	db := open(t, "10000")
	require.NoError(t, customhandler.CreateTable(t.Context(), db))
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return customhandler.New(db) })
}

func TestTwoDatabasesOnOneFileShareTheirLocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	one, two := openFile(t, file, "1000"), openFile(t, file, "1000")
	require.NoError(t, customhandler.CreateTable(t.Context(), one))
	require.NoError(t, customhandler.CreateTable(t.Context(), two), "a table that is there")
	require.NoError(t, lock(t, one))

	rival := claim()
	rival.Token = "another"
	held, err := customhandler.New(two).Lock(t.Context(), rival)
	require.NoError(t, err)
	require.False(t, held)
}

func TestAnotherWriterIsAnOutage(t *testing.T) {
	db := open(t, "1")
	require.NoError(t, customhandler.CreateTable(t.Context(), db))
	writer, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, writer.Close()) }()
	_, err = writer.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)

	require.True(t, loki.IsUnavailable(lock(t, db)), "lock")
	require.True(t, loki.IsUnavailable(customhandler.New(db).Release(t.Context(), claim())), "release")

	_, err = writer.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	require.NoError(t, lock(t, db))
}

func TestAMistakeIsNoOutage(t *testing.T) {
	withoutTable := open(t, "1000")
	err := lock(t, withoutTable)
	require.ErrorContains(t, err, "no such table")
	require.False(t, loki.IsUnavailable(err))

	closed := open(t, "1000")
	require.NoError(t, closed.Close())
	err = lock(t, closed)
	require.ErrorContains(t, err, "closed")
	require.False(t, loki.IsUnavailable(err))
}

// A wait for another writer ends with the caller's context, and with its error.
func TestAWaitForTheFileEndsWithTheContext(t *testing.T) {
	db := open(t, "60000")
	require.NoError(t, customhandler.CreateTable(t.Context(), db))
	writer, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, writer.Close()) }()
	_, err = writer.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = customhandler.New(db).Lock(ctx, claim())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
