package sqlhandler_test

// This file is about errors that every database has: which are repeated, which are outages, which are mistakes.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestErrorsAreWhatTheyMean(t *testing.T) {
	for name, c := range map[string]struct {
		cause       error
		unavailable bool
		sent        int
		says        string
	}{
		"refused":    {&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, true, 1, ""},
		"no host":    {&net.DNSError{Err: "no such host", Name: "db"}, true, 1, ""},
		"reset":      {&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, true, 2, ""},
		"eof":        {io.EOF, true, 2, ""},
		"cut":        {io.ErrUnexpectedEOF, true, 2, ""},
		"conn done":  {sql.ErrConnDone, true, 1, ""},
		"timeout":    {context.DeadlineExceeded, true, 2, ""},
		"marked":     {loki.Unavailable(errors.New("by a wrapper of the driver")), true, 1, ""},
		"lost":       {errLost, true, 2, ""},
		"broken":     {errBroken, true, 2, ""},
		"down":       {errDown, true, 1, "in \"locks\": wait: the database"},
		"no rights":  {errNoRights, false, 1, "in \"locks\": run GRANT: permission"},
		"unheard of": {errors.New("syntax error"), false, 1, "in \"locks\": syntax error"},
	} {
		for op, send := range operations {
			t.Run(name+"/"+op, func(t *testing.T) {
				h, s := newStub(t, first(100, c.cause))
				err := send(t.Context(), h)
				require.ErrorIs(t, err, c.cause)
				require.ErrorContains(t, err, "stubhandler: "+op+` of "key" `)
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.unavailable, loki.IsUnavailable(err))
				// Something broken is tried again over as many connections as may have died, and one more: the pool has
				// let go of its only one in the meantime, or not.
				require.GreaterOrEqual(t, len(s.sent()), c.sent)
				require.LessOrEqual(t, len(s.sent()), c.sent+1)
				if c.sent == 1 {
					require.Len(t, s.sent(), 1)
				}
			})
		}
	}
}

func TestWhatIsRepeatedIsRepeatedAsItWas(t *testing.T) {
	answers := map[string][]driver.Value{
		"lock": {int64(1), int64(7), nil, nil, nil, nil}, "grant": {int64(1), int64(7), nil, nil, nil, nil},
		"extend": {int64(1)}, "release": {""}, "inspect": {"them", nil, nil, nil}, "history": {"t", "h", nil, nil, nil, "held"},
	}
	for _, cause := range []error{errLost, errBroken, io.EOF, driver.ErrBadConn} {
		for op, send := range operations {
			h, s := newStub(t, first(1, cause, answers[op]))
			require.NoError(t, send(t.Context(), h), "%s after %v", op, cause)
			require.Len(t, s.sent(), 2)
			require.Equal(t, s.sent()[0], s.sent()[1])
		}
	}
}

// Nothing is repeated for a caller who has left, whatever else there is to say, and nothing is an outage for that.
func TestEndedContexts(t *testing.T) {
	for op, send := range operations {
		ctx, cancel := context.WithCancel(t.Context())
		h, s := newStub(t, func(int) ([][]driver.Value, error) {
			cancel()
			return nil, errBroken
		})
		err := send(ctx, h)
		require.ErrorIs(t, err, context.Canceled, op)
		require.ErrorIs(t, err, errBroken, op)
		require.False(t, loki.IsUnavailable(err), op)
		require.Len(t, s.sent(), 1, op)
		require.Equal(t, context.Canceled, send(ctx, h), op)
		require.Len(t, s.sent(), 1, op)
	}
}

func TestNoAnswerIsNoGrant(t *testing.T) {
	h, _ := newStub(t, first(0, nil))
	held, err := h.Lock(t.Context(), claim)
	require.ErrorContains(t, err, "no answer")
	require.False(t, held)
	held, err = h.Extend(t.Context(), claim)
	require.ErrorContains(t, err, "no answer")
	require.False(t, held)
	_, held, err = h.Inspect(t.Context(), claim.Key)
	require.NoError(t, err, "nobody holds it")
	require.False(t, held)
}
