package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/memhandler"
)

// The Locker probes a store with a key beside the lock's, in the context of the call that failed.
func TestWitnessReportsNoProbe(t *testing.T) {
	var told []referee.Record
	w := &witness{referee.Primary, "job", memhandler.New(), func(r referee.Record) { told = append(told, r) }}
	ctx := context.WithValue(t.Context(), callNumber{}, 7)
	for i, key := range []string{"job", "job@@probe-0123abcd"} {
		c := loki.Claim{Key: key, Token: string(rune('a' + i)), Expiry: time.Second}
		for _, confirm := range []func(context.Context, loki.Claim) (bool, error){w.Lock, w.Extend} {
			held, err := confirm(ctx, c)
			require.NoError(t, err)
			require.True(t, held)
		}
	}
	for _, r := range told {
		require.Equal(t, 7, r.Call)
	}
	require.Len(t, told, 2, "a lock and an extension of the job")
}
