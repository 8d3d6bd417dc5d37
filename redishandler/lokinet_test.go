package redishandler_test

// This file is the company of LokiNet, the library for .NET.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redishandler"
)

func TestLokiNetClaimIsTheOnlyKey(t *testing.T) {
	f := newFixture(t, redishandler.WithLokiNetKeys())
	a, b := mirrored(claim("invoices", time.Minute)), claim("invoices", time.Minute)
	a.Fence = 7
	g := f.mustHold(a)
	require.Zero(t, g.Fence, "it issues none")
	require.Equal(t, []string{"invoices"}, f.keys())

	busy := f.mustBeBusy(b)
	require.Equal(t, a.Holder, busy.HeldBy.ID)
	require.WithinDuration(t, time.Now(), busy.HeldBy.Since, patience)
	require.True(t, f.extend(a))
	require.False(t, f.extend(b))
	f.release(a)
	require.Empty(t, f.keys())
	require.Empty(t, f.mustHold(b).Released)
}

// notOurs is who holds a lock at whose key there is something else than a claim.
const notOurs = "LokiNet, or a value that is not a lock's"

func TestLokiNetHolderIsRespected(t *testing.T) {
	f := newFixture(t, redishandler.WithLokiNetKeys())
	c := claim("invoices", time.Minute)
	c.Supersedes = "BUILD-SERVER-1"
	for _, seconds := range []int{0, 30} { // LokiNet's own keys have an expiry; somebody else's may have none
		if seconds > 0 {
			f.do("SET", "invoices", "BUILD-SERVER-1", "EX", seconds)
		} else {
			f.do("SET", "invoices", "BUILD-SERVER-1")
		}
		holder := f.mustBeBusy(c).HeldBy
		require.Equal(t, notOurs, holder.ID, "an application's own value is not to end up in a log")
		require.Zero(t, holder.Since)
		require.Equal(t, seconds == 0, holder.Until.IsZero())
		require.Equal(t, seconds == 0, holder.Left == 0)
		inspected, held, err := f.handler.Inspect(t.Context(), "invoices")
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, holder.ID, inspected.ID)
		require.Equal(t, seconds == 0, inspected.Until.IsZero())

		require.False(t, f.extend(c))
		f.release(c)
		require.Equal(t, "BUILD-SERVER-1", f.value("invoices"))
	}
	f.do("DEL", "invoices")
	f.mustHold(c)
	require.True(t, strings.HasPrefix(f.value("invoices"), c.Token))
}

func TestLokiNetEmptyValueIsAHolder(t *testing.T) {
	f := newFixture(t, redishandler.WithLokiNetKeys())
	f.do("SET", "invoices", "")
	require.Equal(t, notOurs, f.mustBeBusy(claim("invoices", time.Minute)).HeldBy.ID)
	_, held, err := f.handler.Inspect(t.Context(), "invoices")
	require.NoError(t, err)
	require.True(t, held)
}
