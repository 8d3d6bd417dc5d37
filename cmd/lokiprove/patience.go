package main

// This file is the patience with servers: a machine that does everything at once keeps them from what loki is not asked
// about, and that is no end of a proof.

import (
	"fmt"
	"os"
	"runtime"

	"github.com/lokilock/loki/internal/redistest"
)

// maxAttempts is how often something is asked of a server. Each attempt has a patience of its own, of some ten seconds.
const maxAttempts = 8

// patiently does what may fail because the machine is slow, until it has not failed. After the last attempt tb hears of it.
func patiently(tb redistest.TB, do func(redistest.TB)) {
	tb.Helper()
	var failed string
	for n := range maxAttempts {
		a := &attempt{TB: tb}
		ended := make(chan struct{})
		go func() { // of its own, since the first failure ends it, as it ends a test's
			defer close(ended)
			do(a)
		}()
		<-ended
		if a.failed == "" {
			return
		}
		failed = a.failed
		fmt.Fprintf(os.Stderr, "lokiprove: attempt %d of %d: %s\n", n+1, maxAttempts, failed)
	}
	tb.Fatalf("%d times in a row: %s", maxAttempts, failed)
}

// attempt is a TB whose Fatalf ends an attempt, and nothing else.
type attempt struct {
	redistest.TB
	failed string
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
