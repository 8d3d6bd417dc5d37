package redishandler_test

// This file is the suite that every handler has to pass.

import (
	"testing"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redishandler"
)

func TestConformance(t *testing.T) {
	for name, opts := range map[string][]redishandler.Option{
		"own keys":    nil,
		"no prefix":   {redishandler.WithPrefix("")},
		"LokiNetKeys": {redishandler.WithLokiNetKeys()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.Start(t).Client(t)
			lokitest.Run(t, func(*testing.T) loki.LockHandler { return redishandler.New(client, opts...) })
		})
	}
}
