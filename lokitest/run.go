package lokitest

import (
	"testing"

	"github.com/lokilock/loki"
)

// Run tests a handler against every clause of [loki.LockHandler] and of the capabilities that it has, each clause in a
// parallel subtest "clauses/" and its name. A failure quotes the sentence of the contract that was broken. When Run
// returns, all of them are over, so that the caller may close the store.
//
// newHandler is called once to see which capabilities there are and once for each clause, with the test that the
// handler is for; it may return the same handler every time. A capability is absent if the type lacks the method, or
// if the method returns an error that matches [errors.ErrUnsupported]; its clauses are left out, with a line in the
// log.
//
// A store may be shared with others: keys are random, and what was taken is released. (A run that is killed leaves what
// it held until that expires; the key of "ten-years" has to be deleted by hand.) The store must be a healthy one: an
// error where the contract has an answer fails the clause. Expiries are real, and a run takes some seconds. How long an
// expiry took is judged by calls that were answered before it, or sent after it, so a slow machine fails nothing. For
// the same reason Run cannot be called inside a testing/synctest bubble, which allows no subtests; [Check] can.
func Run(t *testing.T, newHandler func(t *testing.T) loki.LockHandler) {
	t.Helper()
	has := probeCapabilities(t.Context(), newHandlerOrFail(t, newHandler))
	for _, name := range capabilities {
		if !has[name] {
			t.Logf("lokitest: the handler has no %s; the clauses about it are left out", name)
		}
	}
	// A group of their own, since a test is over before its parallel subtests begin: a store that the caller closes with
	// defer would be closed by then.
	t.Run("clauses", func(t *testing.T) { runClauses(t, clausesFor(has), newHandler) })
}

func runClauses(t *testing.T, clauses []clause, newHandler func(t *testing.T) loki.LockHandler) {
	t.Helper()
	for _, c := range clauses {
		kept := t.Run(c.name, func(t *testing.T) {
			if !c.first {
				t.Parallel()
			}
			c.run(t, newHandler)
		})
		if c.first && !kept {
			return
		}
	}
}

// run judges a handler by the clause.
func (c clause) run(t *testing.T, newHandler func(t *testing.T) loki.LockHandler) {
	v := c.judge(t.Context(), newHandlerOrFail(t, newHandler))
	for _, note := range v.notes {
		t.Log("lokitest: " + note)
	}
	if v.broken != "" {
		t.Fatal("lokitest: " + v.broken)
	}
}

func newHandlerOrFail(t *testing.T, newHandler func(t *testing.T) loki.LockHandler) loki.LockHandler {
	t.Helper()
	h := newHandler(t)
	if h == nil {
		t.Fatal("lokitest: newHandler returned nil, there is nothing to test")
	}
	return h
}
