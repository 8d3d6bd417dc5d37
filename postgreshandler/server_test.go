package postgreshandler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/postgreshandler"
)

func TestServer(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]postgreshandler.Option{
		"WithoutHistory": nil,
		"WithHistory":    {postgreshandler.WithHistory(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqltest.Run(t, func(t *testing.T, ownPool bool) *sqltest.Store {
				s := newStore(t, opts...)
				if !ownPool {
					return s.Store
				}
				config, err := pgx.ParseConfig(server().DSN())
				require.NoError(t, err)
				// As Open has it: pgx does not find dead connections by asking them first.
				unasked := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
				db := stdlib.OpenDB(*config, unasked)
				t.Cleanup(func() { _ = db.Close() })
				return s.on(db).Store
			})
		})
	}
}

// Rows that expired are removed by releases of other keys, whatever those are, and those of live claims are not.
func TestServerExpiredRowsAreSwept(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const old = 300 // several pages
	live, fresh, ahead := s.Claim("live"), s.Claim("fresh"), s.Claim("ahead")
	s.MustGrant(t, live)
	s.MustGrant(t, fresh)
	s.End(t, fresh.Key)
	ahead.Fence = time.Now().Add(time.Hour).UnixMicro()
	s.MustGrant(t, ahead)
	s.exec(t, "UPDATE $T SET expires_at = expires_at - interval '1 hour' WHERE service_key = $1", ahead.Key)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '61 seconds', 1 FROM generate_series(1, $1) AS i`, old)
	c := s.Claim("k")
	releases := 0
	for deadline := time.Now().Add(20 * time.Second); s.Count(t) > 3; releases++ {
		require.True(t, time.Now().Before(deadline), "%d rows are left", s.Count(t))
		s.MustGrant(t, c)
		before := s.Count(t)
		s.MustRelease(t, c)
		require.LessOrEqual(t, before-s.Count(t), 9, "a few at a time")
	}
	require.Less(t, releases, old, "more go than come")
	s.MustBeBusy(t, s.Claim("live"))
	require.Greater(t, s.MustGrant(t, s.Claim("ahead")), ahead.Fence, "a fence that the clock has not passed stays")
}

// What sweeping does in passing must not shut a gate that somebody waits at, or run the server out of locks.
func TestServerSweepingLocksWhatItRemovesAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `INSERT INTO $T SELECT 'live' || i, 't', 'h', now(), now() + interval '1 hour', 1 FROM generate_series(1, 60) AS i`)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '2 minutes', 1 FROM generate_series(1, 3) AS i`)
	s.exec(t, "ANALYZE $T") // so small a table is joined by reading all of it
	h, stub := newStub(t, sqltest.Always(answers["release"], nil), s.opts...)
	require.NoError(t, h.Release(t.Context(), claim))
	sent := stub.Sent()[0]

	tx, err := s.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // that is the end of it
	var gates int
	_, err = tx.ExecContext(t.Context(), sent.Statement, sent.Args...)
	require.NoError(t, err)
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").Scan(&gates))
	require.Equal(t, 4, gates, "its own, and one for each row that went")
}
