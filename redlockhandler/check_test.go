package redlockhandler_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redlockhandler"
)

func TestCheckReturnsWhatValidateReturns(t *testing.T) {
	var client *redis.Client
	requireMistake(t, redlockhandler.Check(t.Context(), []*redis.Client{client}), "three, five or seven")
}

func TestCheckLooksAtEveryServer(t *testing.T) {
	t.Parallel()
	var clients []*redis.Client
	var servers []*redistest.Server
	for range 3 {
		servers = append(servers, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"))
		clients = append(clients, servers[len(servers)-1].Client(t))
	}
	require.NoError(t, redlockhandler.Check(t.Context(), clients))

	require.NoError(t, clients[2].ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	err := redlockhandler.Check(t.Context(), clients)
	require.ErrorIs(t, err, redlockhandler.ErrAdvice)
	require.True(t, strings.HasPrefix(err.Error(), "redlockhandler: advice: the server at "+servers[2].Addr()), err)

	servers[0].Kill()
	requireUnavailable(t, redlockhandler.Check(t.Context(), clients), "refused")
	require.NoError(t, clients[1].Do(t.Context(), "ACL", "SETUSER", "default", "-del").Err())
	err = redlockhandler.Check(t.Context(), clients)
	requireMistake(t, err, "may not run DEL")
	require.NotErrorIs(t, err, redlockhandler.ErrAdvice)
	require.ErrorContains(t, err, "refused")
}
