package redishandler_test

// This file is the mistakes that Validate names.

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redishandler"
)

func TestMistakesAreNamedByValidateAndByEveryMethod(t *testing.T) {
	var noClient *redis.Client
	var noCluster *redis.ClusterClient
	good := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, good.Close()) }()
	for text, h := range map[string]*redishandler.Handler{
		"the client is nil":             redishandler.New(nil),
		"the client is nil: make":       redishandler.New(noClient),
		"the client is nil: make one":   redishandler.New(noCluster),
		"an Option is nil":              redishandler.New(good, nil),
		`the prefix "a{" contains a br`: redishandler.New(good, redishandler.WithPrefix("a{")),
		`the prefix "}" contains a br`:  redishandler.New(good, redishandler.WithPrefix("}")),
		"not valid UTF-8":               redishandler.New(good, redishandler.WithPrefix("\xff")),
		"contains a control character":  redishandler.New(good, redishandler.WithPrefix("a\n")),
		"a fence TTL of 0s":             redishandler.New(good, redishandler.WithFenceTTL(0)),
		"a fence TTL of -1ns":           redishandler.New(good, redishandler.WithFenceTTL(-1)),
		"leave one of them out":         redishandler.New(good, redishandler.WithLokiNetKeys(), redishandler.WithFenceTTL(time.Hour)),
	} {
		requireMistake(t, h.Validate(), text)
		for name, call := range calls(h, claim("k", time.Minute)) {
			require.EqualError(t, call(t.Context()), h.Validate().Error(), name)
		}
	}
}

func TestEveryMistakeIsNamed(t *testing.T) {
	err := redishandler.New(nil, redishandler.WithPrefix("{"), nil, redishandler.WithFenceTTL(-time.Second)).Validate()
	for _, text := range []string{"the client is nil", "the prefix", "an Option is nil", "a fence TTL"} {
		require.ErrorContains(t, err, text)
	}
}

func TestGoodOptions(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, client.Close()) }()
	require.NoError(t, redishandler.New(client).Validate())
	require.NoError(t, redishandler.New(client, redishandler.WithPrefix(""), redishandler.WithFenceTTL(1)).Validate())
	require.NoError(t, redishandler.New(client, redishandler.WithPrefix("é locks/"), redishandler.WithLokiNetKeys()).Validate())
}
