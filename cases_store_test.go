package loki_test

// This file is the stores that a field case can run on, each with a way to look into it: Redis, the memory of this
// process, and a T-SQL server where there is one.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sqlxdb "github.com/jmoiron/sqlx" // sqlx is a name of rooms_test.go
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// dsnVar names the T-SQL server, the login of which may make tables.
const dsnVar = "LOKI_TEST_MSSQL_DSN"

// caseStore is a store that can be made to fail, that remembers what it was asked, and that a test can look into.
type caseStore struct {
	*lokitest.Recorder
	faults *lokitest.Faults
	t      *testing.T

	inspect loki.Inspector
	now     func() time.Time // the store's clock
	expiry  time.Duration    // one that is short, and that the store keeps up with even on a busy machine
	sql     sqlKeys          // of a T-SQL server
	keys    func() []string  // the locks that are recorded, in SQL also those that have expired
	token   func(key string) string
}

func newCaseStore(t *testing.T, h interface {
	loki.LockHandler
	loki.Inspector
}) *caseStore {
	faults := lokitest.NewFaults(h)
	return &caseStore{Recorder: lokitest.NewRecorder(faults), faults: faults, t: t, inspect: h, expiry: 900 * time.Millisecond}
}

// row is who holds key.
func (s *caseStore) row(key string) (loki.Holder, bool) {
	s.t.Helper()
	h, held, err := s.inspect.Inspect(s.t.Context(), key)
	require.NoError(s.t, err)
	return h, held
}

// remaining is what is left of a claim by the store's own clock.
func (s *caseStore) remaining(key string) time.Duration {
	s.t.Helper()
	h, held := s.row(key)
	require.True(s.t, held, "nobody holds %q", key)
	return h.Until.Sub(s.now())
}

func (s *caseStore) requireRow(key string) {
	s.t.Helper()
	eventually(s.t, func() bool { _, held := s.row(key); return held }, "the secondary holds "+key)
}

func (s *caseStore) requireEmpty() {
	s.t.Helper()
	eventually(s.t, func() bool { return len(s.keys()) == 0 }, "nothing is left in the secondary")
}

func memoryStore(t *testing.T) *caseStore {
	mem := memhandler.New()
	s := newCaseStore(t, mem)
	s.now, s.keys = time.Now, mem.HeldKeys
	s.token = func(key string) (token string) {
		for _, call := range s.Calls(lokitest.OpLock) {
			if call.Held && call.Claim.Key == key {
				token = call.Claim.Token
			}
		}
		return token
	}
	return s
}

func redisStore(r *realRedis) *caseStore {
	s := newCaseStore(r.t, r.handler())
	s.now = func() time.Time {
		now, err := r.direct.Time(context.Background()).Result()
		require.NoError(r.t, err)
		return now
	}
	s.keys = r.left
	s.token = func(string) string { return r.token() }
	return s
}

// sqlTable is the table that the tests of this run have together on the T-SQL server, made at the first need, and a
// pool of its own: making either anew takes such a server long.
var sqlTable struct {
	sync.Once
	name string
	db   *sqlxdb.DB
	err  error
}

// dropSQLTable is for TestMain.
func dropSQLTable() error {
	if sqlTable.db == nil {
		return nil
	}
	_, err := sqlTable.db.ExecContext(context.Background(), "DROP TABLE [dbo].["+sqlTable.name+"]")
	return errors.Join(err, sqlTable.db.Close())
}

// requireSQL is the pool of the common table. It skips the test if no server is named.
func requireSQL(t *testing.T) *sqlxdb.DB {
	t.Helper()
	dsn := os.Getenv(dsnVar)
	if dsn == "" {
		t.Skipf("not run on a T-SQL server: %s is not set", dsnVar)
	}
	sqlTable.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if sqlTable.db, sqlTable.err = sqlxdb.Open("sqlserver", dsn); sqlTable.err == nil {
			sqlTable.db.SetMaxIdleConns(16)
			sqlTable.name = fmt.Sprintf("LokiCases_%d_%d", os.Getpid(), time.Now().UnixNano())
			sqlTable.err = migrations.Apply(ctx, sqlTable.db.DB, migrations.WithTable(sqlTable.name))
		}
	})
	require.NoError(t, sqlTable.err)
	return sqlTable.db
}

// openSQL is a pool of the test's own, on the same database.
func openSQL(t *testing.T) *sqlxdb.DB {
	t.Helper()
	requireSQL(t)
	db, err := sqlxdb.Open("sqlserver", os.Getenv(dsnVar))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// sqlKeys is a handler that has keys of the test's own in the common table.
type sqlKeys struct {
	*mssqlhandler.Handler
	prefix string
}

var sqlTests atomic.Int64

func newSQLKeys(db *sqlxdb.DB) sqlKeys {
	return sqlKeys{mssqlhandler.New(db, mssqlhandler.WithTable(sqlTable.name)), fmt.Sprintf("%d:", sqlTests.Add(1))}
}

// on is the same keys through another pool, as another process would have it.
func (s sqlKeys) on(db *sqlxdb.DB) sqlKeys {
	return sqlKeys{mssqlhandler.New(db, mssqlhandler.WithTable(sqlTable.name)), s.prefix}
}

func (s sqlKeys) own(c loki.Claim) loki.Claim {
	c.Key = s.prefix + c.Key
	return c
}

func (s sqlKeys) Lock(ctx context.Context, c loki.Claim) (bool, error) {
	return s.Handler.Lock(ctx, s.own(c))
}

func (s sqlKeys) Grant(ctx context.Context, c loki.Claim) (loki.Grant, error) {
	return s.Handler.Grant(ctx, s.own(c))
}

func (s sqlKeys) Extend(ctx context.Context, c loki.Claim) (bool, error) {
	return s.Handler.Extend(ctx, s.own(c))
}

func (s sqlKeys) Release(ctx context.Context, c loki.Claim) error {
	return s.Handler.Release(ctx, s.own(c))
}

func (s sqlKeys) ReleaseHeld(ctx context.Context, c loki.Claim) (bool, error) {
	return s.Handler.ReleaseHeld(ctx, s.own(c))
}

func (s sqlKeys) Inspect(ctx context.Context, key string) (loki.Holder, bool, error) {
	return s.Handler.Inspect(ctx, s.prefix+key)
}

// list is one column of the test's own rows.
func (s sqlKeys) list(t *testing.T, column string) []string {
	t.Helper()
	var values []string
	require.NoError(t, sqlTable.db.SelectContext(context.Background(), &values,
		"SELECT ["+column+"] FROM [dbo].["+sqlTable.name+"] WHERE [ServiceKey] LIKE @p1", s.prefix+"%"))
	return values
}

func sqlStore(t *testing.T) *caseStore {
	db := requireSQL(t)
	keys := newSQLKeys(db)
	s := newCaseStore(t, keys)
	s.expiry = 6 * time.Second
	s.sql = keys
	s.now = func() time.Time {
		var µs int64
		require.NoError(t, db.GetContext(context.Background(), &µs, "SELECT DATEDIFF_BIG(microsecond, '19700101', SYSUTCDATETIME())"))
		return time.UnixMicro(µs)
	}
	s.keys = func() []string { return keys.list(t, "ServiceKey") }
	s.token = func(string) string { return strings.Join(keys.list(t, "Token"), ", ") }
	return s
}

// onSecondaries runs a test with each store that can be a secondary.
func onSecondaries(t *testing.T, test func(t *testing.T, s *caseStore)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, memoryStore(t))
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		test(t, sqlStore(t))
	})
}

// onServers runs a test with each store that is a server.
func onServers(t *testing.T, test func(t *testing.T, s *caseStore)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redisStore(startRedis(t)))
	})
	t.Run("mssql", func(t *testing.T) {
		t.Parallel()
		test(t, sqlStore(t))
	})
}
