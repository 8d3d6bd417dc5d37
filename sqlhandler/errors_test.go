package sqlhandler_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
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
		"lost":       {errLost, true, 2, ""}, // and a release more often
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
				if op == "release" && errors.Is(c.cause, errLost) {
					require.Len(t, s.sent(), 4, "nobody else will make it")
					return
				}
				require.GreaterOrEqual(t, len(s.sent()), c.sent)
				require.LessOrEqual(t, len(s.sent()), c.sent+1)
				if c.sent == 1 {
					require.Len(t, s.sent(), 1)
				}
			})
		}
	}
}

// A database that has answered once is there, so that its name is not the reason.
func TestUnopenedIsUnavailableAfterAnAnswer(t *testing.T) {
	for op, send := range operations {
		h, s := newStub(t, first(100, errUnopened))
		err := send(t.Context(), h)
		require.ErrorContains(t, err, "see its name", op)
		require.False(t, loki.IsUnavailable(err), op)
		require.Len(t, s.sent(), 1, op)

		s.answer = first(0, nil, []driver.Value{int64(1)})
		_, err = h.Extend(t.Context(), claim)
		require.NoError(t, err, op)
		s.answer = first(100, errUnopened)
		require.True(t, loki.IsUnavailable(send(t.Context(), h)), op)
	}
}

func TestWhatIsRepeatedIsRepeatedAsItWas(t *testing.T) {
	answers := map[string][]driver.Value{
		"lock": {int64(1), int64(7), nil, nil, nil, nil}, "grant": {int64(1), int64(7), nil, nil, nil, nil},
		"extend": {int64(1)}, "release": {"", int64(1)}, "inspect": {"them", nil, nil, nil}, "history": {"t", "h", nil, nil, nil, "held"},
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

// A store whose statements may be overtaken says so by no row: a grant is sent again, and so is a release, once.
func TestWhatWasOvertakenIsSentAgain(t *testing.T) {
	overtaken := func(d *sqlhandler.Dialect) { d.Overtaken = true }
	after := func(n int, row ...driver.Value) func(int) ([][]driver.Value, error) {
		return func(call int) ([][]driver.Value, error) {
			if call < n {
				return nil, nil
			}
			return [][]driver.Value{row}, nil
		}
	}
	h, s := newStub(t, after(3, int64(1), int64(7), nil, nil, nil, nil), overtaken)
	g, err := h.Grant(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, loki.Grant{Held: true, Fence: 7}, g)
	require.Len(t, s.sent(), 4)

	h, s = newStub(t, after(100), overtaken)
	_, err = h.Grant(t.Context(), claim)
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "changed hands")
	require.Len(t, s.sent(), 4, "not for ever")

	for none, sent := range map[int]int{0: 1, 1: 2, 100: 2} {
		h, s = newStub(t, after(none, "next", int64(1)), overtaken)
		require.NoError(t, h.Release(t.Context(), claim), "what is not held is no error")
		require.Len(t, s.sent(), sent)
	}
	h, s = newStub(t, after(100))
	require.NoError(t, h.Release(t.Context(), claim))
	require.Len(t, s.sent(), 1, "no other store is asked twice")
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
		err = send(ctx, h)
		require.ErrorIs(t, err, context.Canceled, op)
		require.EqualError(t, err, context.Canceled.Error(), op)
		require.Equal(t, recordsClaims(op), isNotSent(err), op)
		require.Len(t, s.sent(), 1, op)
	}
}

// isNotSent reports whether err has the mark of [loki.NotSent], which a handler puts around everything else.
func isNotSent(err error) bool {
	return reflect.TypeOf(err) == reflect.TypeOf(loki.NotSent(io.EOF))
}

// recordsClaims reports whether an operation may change what stands in the table. Only there the mark matters.
func recordsClaims(op string) bool { return op != "inspect" && op != "history" }

// A statement that had no connection has changed nothing. One that had a connection may have, also when the driver asks for
// another connection, and a permanent error is not an outage.
func TestStatementsThatWereNotSentAreMarked(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, c := range map[string]struct {
		dial, answer error // of the second connection, where the first one has an answer
		sent         bool
		unavailable  bool
	}{
		"no connection":               {dial: refused, unavailable: true},
		"login refused":               {dial: errNoRights},
		"broken, then no connection":  {dial: refused, answer: errBroken, sent: true, unavailable: true},
		"died in the pool, then none": {dial: refused, answer: driver.ErrBadConn, sent: true, unavailable: true},
		"lost to another session":     {answer: errLost, sent: true, unavailable: true},
		"down":                        {answer: errDown, sent: true, unavailable: true},
		"permanent":                   {answer: errNoRights, sent: true},
	} {
		for op, send := range operations {
			t.Run(name+"/"+op, func(t *testing.T) {
				h, s := newStub(t, first(100, c.answer))
				dials := 0
				s.dial = func(context.Context) (err error) {
					if dials++; dials > 1 || c.answer == nil {
						err = c.dial
					}
					return err
				}
				s.db.SetMaxIdleConns(-1)
				err := send(t.Context(), h)
				require.Error(t, err)
				require.Equal(t, c.sent, len(s.sent()) > 0)
				require.Equal(t, c.unavailable, loki.IsUnavailable(err), "%v", err)
				require.Equal(t, c.unavailable && !c.sent && recordsClaims(op), isNotSent(err), "%v", err)
			})
		}
	}
}

func TestNoAnswerIsNoGrant(t *testing.T) {
	h, _ := newStub(t, first(0, nil))
	held, err := h.Lock(t.Context(), claim)
	require.ErrorContains(t, err, "the dialect's Grant has to answer a row in any case, with Held, Fence, Holder, Since, Until, Left")
	require.False(t, held)
	held, err = h.Extend(t.Context(), claim)
	require.ErrorContains(t, err, "the dialect's Extend has to answer a row in any case, with Held ")
	require.False(t, held)
	_, held, err = h.Inspect(t.Context(), claim.Key)
	require.NoError(t, err, "nobody holds it")
	require.False(t, held)
}

// Whoever writes a dialect is told which statement is wrong, and what it has to answer.
func TestAnswersOfAnotherForm(t *testing.T) {
	columns := map[string]string{
		"lock":    "Grant answered with 0 columns: it has to have 6: Held, Fence, Holder, Since, Until, Left",
		"extend":  "Extend answered with 0 columns: it has to have 1: Held",
		"release": "Release answered with 0 columns: it has to have 2: Next, Held",
		"inspect": "Inspect answered with 0 columns: it has to have 4: Holder, Since, Until, Left",
		"history": "History answered with 0 columns: it has to have 6: Token, Holder, Fence, Since, Until, Outcome",
	}
	for op, says := range columns {
		h, _ := newStub(t, first(0, nil, []driver.Value{}))
		err := operations[op](t.Context(), h)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "stubhandler: "+op+` of "key" `)
		require.False(t, loki.IsUnavailable(err))
	}
	h, _ := newStub(t, first(0, nil, []driver.Value{"it is", int64(7), nil, nil, nil, nil}))
	_, err := h.Lock(t.Context(), claim)
	require.ErrorContains(t, err, "Grant answered with something else than Held, Fence, Holder, Since, Until, Left: ")
	require.ErrorContains(t, err, `"it is"`)

	h, _ = newStub(t, first(0, nil, []driver.Value{"t", "h", nil, nil, nil, "held", "more than was asked for"}))
	runs, err := h.History(t.Context(), claim.Key, 1)
	require.NoError(t, err)
	require.Len(t, runs, 1)
}
