package mssqlhandler_test

import (
	"context"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/sqltest"
	"github.com/lokilock/loki/mssqlhandler"
)

func TestMistakesOfNewAreKeptForValidate(t *testing.T) {
	_, s, db := newStub(t, sqltest.Always(granted(1), nil))
	for says, h := range map[string]*mssqlhandler.Handler{
		"database is nil":                        mssqlhandler.New(nil),
		"is nil: open one":                       mssqlhandler.New(&sqlx.DB{}),
		"name of the table is empty":             mssqlhandler.New(db, mssqlhandler.WithTable("")),
		"name of the schema is":                  mssqlhandler.New(db, mssqlhandler.WithSchema("")),
		"at most 118":                            mssqlhandler.New(db, mssqlhandler.WithTable(strings.Repeat("t", 119))),
		"at most 128":                            mssqlhandler.New(db, mssqlhandler.WithSchema(strings.Repeat("s", 129))),
		"control character":                      mssqlhandler.New(db, mssqlhandler.WithTable("a\nb")),
		"not valid UTF-8":                        mssqlhandler.New(db, mssqlhandler.WithTable("\xff")),
		"WithLokiNetExpiry: 0s is not possible":  mssqlhandler.New(db, mssqlhandler.WithLokiNetExpiry(0)),
		"WithLokiNetExpiry: -1s is not possible": mssqlhandler.New(db, mssqlhandler.WithLokiNetExpiry(-time.Second)),
		"at most 68 years":                       mssqlhandler.New(db, mssqlhandler.WithLokiNetExpiry(math.MaxInt64)),
		"WithHistory: 0s is not possible":        mssqlhandler.New(db, mssqlhandler.WithHistory(0)),
		"WithHistory: -1h0m0s is not possible":   mssqlhandler.New(db, mssqlhandler.WithHistory(-time.Hour)),
		"option 2 is nil":                        mssqlhandler.New(db, mssqlhandler.WithTable("t"), nil),
		"was not made by New":                    {},
	} {
		t.Run(says, func(t *testing.T) {
			require.ErrorContains(t, h.Validate(), says)
			for op, send := range operations {
				require.ErrorContains(t, send(t.Context(), h), says, op)
			}
			require.NoError(t, h.Close())
		})
	}
	require.Empty(t, s.Sent())

	err := mssqlhandler.New(nil, nil, mssqlhandler.WithTable(""), mssqlhandler.WithLokiNetExpiry(-1)).Validate()
	for _, says := range []string{"option 1 is nil", "name of the table", "WithLokiNetExpiry", "database is nil"} {
		require.ErrorContains(t, err, says, "every mistake at once")
	}
	require.NoError(t, mssqlhandler.New(db).Validate())
}

func TestLokiNetExpiryIsSentInSecondsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{1: 1, time.Second: 1, time.Second + 1: 2, time.Hour: 3600} {
		h, s, _ := newStub(t, sqltest.Always(granted(1), nil), mssqlhandler.WithLokiNetExpiry(d))
		_, err := h.Lock(t.Context(), claim)
		require.NoError(t, err)
		require.Equal(t, want, s.Sent()[0].Args[7])
	}
	h, s, _ := newStub(t, sqltest.Always(granted(1), nil))
	_, err := h.Lock(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, int64(-1), s.Sent()[0].Args[7], "never, unless asked for")
}

// Something takes the connection and says nothing: the login ends with the call, and nothing of it is left.
func TestOpenEndsLoginsWithTheCall(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	h, err := mssqlhandler.Open("sqlserver://user:s3cret@" + silent.Addr().String() + "?encrypt=disable")
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	for range 3 {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = h.Lock(ctx, claim)
		cancel()
		require.True(t, loki.IsUnavailable(err), "%v", err)
		require.GreaterOrEqual(t, time.Since(begun), 40*time.Millisecond)
		require.Less(t, time.Since(begun), 5*time.Second)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, h.Close())
}
