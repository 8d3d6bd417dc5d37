package memhandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/memhandler"
)

func TestConformance(t *testing.T) {
	store := memhandler.New() // one for all clauses, as a shared store is
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return store })
	t.Cleanup(func() {
		if left := store.HeldKeys(); len(left) > 0 {
			t.Errorf("the suite left %q", left)
		}
		require.Eventually(t, func() bool { return len(store.ListenedKeys()) == 0 }, 10*time.Second, time.Millisecond, "somebody listens")
	})
}
