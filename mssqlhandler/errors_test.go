package mssqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

var claim = loki.Claim{Key: "invoice-batch", Token: "7f3a", Expiry: 30 * time.Second, Holder: "host/1", Fence: 5, Supersedes: "older"}

// operations are every way to send something.
var operations = map[string]func(context.Context, *mssqlhandler.Handler) error{
	"lock":    func(ctx context.Context, h *mssqlhandler.Handler) error { _, err := h.Lock(ctx, claim); return err },
	"grant":   func(ctx context.Context, h *mssqlhandler.Handler) error { _, err := h.Grant(ctx, claim); return err },
	"extend":  func(ctx context.Context, h *mssqlhandler.Handler) error { _, err := h.Extend(ctx, claim); return err },
	"release": func(ctx context.Context, h *mssqlhandler.Handler) error { return h.Release(ctx, claim) },
	"inspect": func(ctx context.Context, h *mssqlhandler.Handler) error {
		_, _, err := h.Inspect(ctx, claim.Key)
		return err
	},
}

func number(n int32) mssql.Error {
	return mssql.Error{Number: n, Class: 14, Message: fmt.Sprint("message of ", n)}
}

var refused = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

func TestOutages(t *testing.T) {
	outages := map[string]error{
		"refused":           fmt.Errorf("unable to open tcp connection: %w", refused),
		"reset":             &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"eof":               io.EOF,
		"cut short":         io.ErrUnexpectedEOF,
		"bad connection":    driver.ErrBadConn,
		"no such host":      &net.DNSError{Err: "no such host", Name: "db", IsNotFound: true},
		"dial timed out":    context.DeadlineExceeded,
		"broken stream":     mssql.StreamError{InnerError: errors.New("unknown token")},
		"server fault":      mssql.ServerError{},
		"handshake cut":     errors.New("TLS Handshake failed: cannot read handshake packet: EOF"),
		"send failed":       errors.New("failed to send RPC: write: broken pipe"),
		"severity":          mssql.Error{Number: 4242, Class: 17},
		"before the last":   mssql.Error{Number: 18456, Class: 14, All: []mssql.Error{number(40613), number(18456)}},
		"wrapped by tracer": fmt.Errorf("traced: %w", number(40613)),
	}
	for _, n := range []int32{
		40613, 40197, 40501, 40540, 10928, 10929, 49918, 49919, 49920, 4221, 233, 64, 10053, 10054, 10060,
		976, 983, 3906, 1204, 1205, 1222, 3960, 596, 18401, 17142, 6005, 9002,
	} {
		outages[fmt.Sprint(n)] = number(n)
	}
	for name, cause := range outages {
		for op, send := range operations {
			t.Run(name+"/"+op, func(t *testing.T) {
				h, s, _ := newStub(t, sqltest.Always(nil, cause))
				if errors.Is(cause, refused) {
					s.DialErr = cause
				}
				err := send(t.Context(), h)
				require.True(t, loki.IsUnavailable(err), "%v", err)
				require.ErrorContains(t, err, claim.Key)
				require.ErrorContains(t, err, "[dbo].[LokiLockings]")
				require.ErrorContains(t, err, cause.Error())
				requireCause(t, cause, err)
			})
		}
	}
}

func TestMistakes(t *testing.T) {
	mistakes := map[string]struct {
		cause error
		says  string
	}{
		"login":         {number(18456), "does not let this login in: see the user and the password"},
		"locked":        {number(18486), "locked"},
		"database":      {number(911), "no such database for this login: see the data source name"},
		"no user there": {number(916), "whether the login is a user of the database"},
		"firewall":      {number(40615), "firewall's rules"},
		"other numbers": {number(33557097), "mssqlhandler.Check says whether"},
		"table":         {number(208), "run migrations.Apply"},
		"column":        {number(207), "run migrations.Apply"},
		"permission":    {number(229), "needs SELECT, INSERT, UPDATE and DELETE on the table"},
		"fence":         {number(8115), "no fence is left"},
		"implicit":      {number(50007), "leave SET IMPLICIT_TRANSACTIONS ON out"},
		"syntax":        {number(102), "message of 102"},
		"certificate":   {errors.New("TLS Handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"), "unknown authority"},
		"driver refuse": {errors.New("sql: expected 0 arguments, got 8"), "expected 0 arguments"},
	}
	for name, m := range mistakes {
		for op, send := range operations {
			t.Run(name+"/"+op, func(t *testing.T) {
				h, s, _ := newStub(t, sqltest.Always(nil, m.cause))
				err := send(t.Context(), h)
				require.Error(t, err)
				require.False(t, loki.IsUnavailable(err), "%v", err)
				require.ErrorContains(t, err, m.says)
				require.ErrorContains(t, err, claim.Key)
				requireCause(t, m.cause, err)
				require.Len(t, s.Sent(), 1, "a mistake is not repeated")
			})
		}
	}
}

// A login whose database is not opened gets the same error for a misspelt name as in a failover and while a server that has
// started recovers its databases. A database that has answered once has the right name.
func TestDatabaseThatIsNotOpened(t *testing.T) {
	for _, n := range []int32{4060, 4064} {
		unopened := mssql.Error{Number: 18456, Class: 14, All: []mssql.Error{number(n), number(18456)}}
		for op, send := range operations {
			h, s, db := newStub(t, sqltest.Always(nil, unopened))
			for _, err := range []error{send(t.Context(), h), mssqlhandler.Check(t.Context(), db)} {
				require.ErrorContains(t, err, "does not open this database: the name in the data source name is wrong, or", op)
				require.False(t, loki.IsUnavailable(err), op)
				requireCause(t, unopened, err)
			}
			s.Answer = sqltest.Always(granted(4), nil)
			_, err := h.Lock(t.Context(), claim)
			require.NoError(t, err)
			s.Answer = sqltest.Always(nil, unopened)
			err = send(t.Context(), h)
			require.ErrorContains(t, err, "offline or failing over", op)
			require.True(t, loki.IsUnavailable(err), op)
		}
	}
}

// requireCause finds cause in err: with errors.As where it is mssql.Error, which is a value that cannot be compared.
func requireCause(t *testing.T, cause, err error) {
	t.Helper()
	var want, got mssql.Error
	if errors.As(cause, &want) {
		require.ErrorAs(t, err, &got)
		require.Equal(t, want, got)
		return
	}
	require.ErrorIs(t, err, cause)
}

func TestClosedDatabaseIsAMistake(t *testing.T) {
	h, _, db := newStub(t, sqltest.Always(granted(1), nil))
	require.NoError(t, db.Close())
	_, err := h.Lock(t.Context(), claim)
	require.ErrorContains(t, err, "database is closed")
	require.False(t, loki.IsUnavailable(err))
}

func TestCase061_DeadlockVictimOnAcquire(t *testing.T) {
	for _, n := range []int32{1205, 1222, 3960} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h, s, _ := newStub(t, sqltest.First(1, number(n), granted(9)))
			g, err := h.Grant(t.Context(), claim)
			require.NoError(t, err)
			require.Equal(t, loki.Grant{Held: true, Fence: 9}, g)
			require.Len(t, s.Sent(), 2)

			h, s, _ = newStub(t, sqltest.First(2, number(n), granted(9)))
			_, err = h.Grant(t.Context(), claim)
			require.True(t, loki.IsUnavailable(err))
			requireCause(t, number(n), err)
			require.Len(t, s.Sent(), 2, "repeated once, not for ever")
		})
	}
}

func TestCase066_FirstUseAfterAnOutage(t *testing.T) {
	const idle = 6
	for _, dead := range []error{
		&net.OpError{Op: "Read", Err: io.EOF}, // what go-mssqldb says when the connection is found dead on reading
		driver.ErrBadConn,                     // ... and on sending
		mssql.ServerError{},
	} {
		t.Run(dead.Error(), func(t *testing.T) {
			h, s, db := newStub(t, sqltest.Always(granted(3), nil))
			s.Dead = dead
			db.SetMaxIdleConns(idle)
			fill(t, db, idle)

			s.Restart()
			held, err := h.Lock(t.Context(), claim)
			require.NoError(t, err)
			require.True(t, held)
			require.Equal(t, idle+1, s.Dials(), "one fresh connection")
		})
	}
}

// fill leaves n idle connections in the pool.
func fill(t *testing.T, db *sqlx.DB, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		c, err := db.Conn(t.Context())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

func TestServerThatIsDownIsAskedOnce(t *testing.T) {
	h, s, _ := newStub(t, nil)
	s.DialErr = refused
	_, err := h.Lock(t.Context(), claim)
	require.True(t, loki.IsUnavailable(err))
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, 1, s.Dials())
}

func TestBrokenConnectionsAreNotTriedForEver(t *testing.T) {
	h, s, _ := newStub(t, sqltest.Always(nil, &net.OpError{Op: "Read", Err: io.EOF}))
	_, err := h.Lock(t.Context(), claim)
	require.True(t, loki.IsUnavailable(err))
	require.LessOrEqual(t, len(s.Sent()), 3)
}

func TestBatchThatDatabaseSQLSendsTwice(t *testing.T) {
	for op, send := range operations {
		t.Run(op, func(t *testing.T) {
			h, s, _ := newStub(t, sqltest.First(1, driver.ErrBadConn, answers[op]))
			require.NoError(t, send(t.Context(), h))
			sent := s.Sent()
			require.Len(t, sent, 2)
			require.Equal(t, sent[0], sent[1], "the same claim both times, not a new one")
		})
	}
}

func TestErrorBehindTheAnswerCounts(t *testing.T) {
	sets := granted(4)
	sets[0].Err = number(229)
	h, _, _ := newStub(t, sqltest.Always(sets, nil))
	held, err := h.Lock(t.Context(), claim)
	requireCause(t, number(229), err)
	require.False(t, held)

	sets = busy("them")
	sets[1].Err = number(40197)
	h, _, _ = newStub(t, sqltest.Always(sets, nil))
	_, err = h.Lock(t.Context(), claim)
	require.True(t, loki.IsUnavailable(err))
}
